"""What a scheme from outside must obey, at the least: test_own_scheme.py, test_recipe.py."""

from tests.contract import test_decoding, test_engines, test_positions, test_settings, test_terms

LAWS = (
    test_engines.test_dense_equals_tiled_at_any_positions_and_segments,
    test_engines.test_dense_equals_tiled_where_positions_are_contiguous,
    test_decoding.test_decoding_with_a_cache_equals_dense,
    test_positions.test_a_relative_scheme_does_not_change_under_a_shift,
    test_terms.test_a_tile_of_a_term_is_the_term_of_the_tile,
    test_settings.test_a_scheme_is_frozen_hashable_and_a_static_argument,
)
