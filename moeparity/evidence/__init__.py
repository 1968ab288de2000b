"""What real programs computed: recorded, compared, explained."""
