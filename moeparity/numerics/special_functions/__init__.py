"""NVIDIA's approximate special functions (`rcp.approx.f32` and kin), bit for bit, on any device of torch."""
