"""What the notebook is given: the sketch is turned down wherever it is wrong, and the pictures count right."""

import math
import re

import pytest

from lessons.n14_whole_mlp import arithmetic, sketch

WHOLE = (32, 32, 64, 32)  # of the check's case: rows, n, m, l


class TestSketch:
    @pytest.mark.parametrize("blocks", [(32, 16, 64, 32), (32, 32, 32, 32), (16, 16, 16, 16)], ids=str)
    def test_is_wrong_where_a_sum_is_cut(self, blocks):
        message = r"case 32 rows of 32-64-32: \d+ of 1024 elements are wrong\. At .*expected"
        assert re.match(message, sketch.held(*blocks))

    @pytest.mark.parametrize("blocks", [WHOLE, (16, 32, 64, 16)], ids=str)
    def test_is_right_where_none_is(self, blocks):
        assert sketch.held(*blocks) == "right"


def test_an_output_hangs_on_one_row_and_all_of_it():
    for needed in arithmetic.dependency(row=3, column=2):
        assert needed[3].all()
        needed[3] = False
        assert not needed.any()


class TestCrossing:
    def test_lies_between_the_points(self):
        assert math.isclose(arithmetic.crossing({100: (1.0, 2.0), 10_000: (4.0, 2.0)}), 1000)

    def test_is_the_first_point_where_all_are_slower(self):
        assert arithmetic.crossing({100: (3.0, 2.0), 200: (4.0, 2.0)}) == 100

    def test_is_none_where_none_is(self):
        assert arithmetic.crossing({100: (1.0, 2.0), 200: (1.0, 2.0)}) is None
