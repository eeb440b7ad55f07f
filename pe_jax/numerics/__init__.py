"""What several encodings compute alike: angles, running sums, and arrays as they need them."""
