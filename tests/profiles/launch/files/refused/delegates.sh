bash other/launch.sh --tensor-parallel-size 4
