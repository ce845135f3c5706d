"""The questions that the ranking sample shows."""

from loadtest.up.ranking import has_no_number


def test_questions_that_hang_on_a_number_are_not_shown() -> None:
    assert not has_no_number("who is doing 2018 super bowl half time show")
    assert has_no_number("who has the most followers in the world on instagram")
