"""What holds a run or a model against something: check, limits, compare, yardstick, fleet."""
