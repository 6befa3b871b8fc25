import itertools

import pytest

from gateway.demo.task import HELD_OUT, TRAINING, Task, Turn, held_out_tasks, score, training_tasks

TASK = Task(item="lamp", price=37)
CALL = Turn(content="LOOKUP(lamp)", finish_reason="stop")
ANSWER = Turn(content="37", finish_reason="stop")


def test_a_valid_call_and_the_price_are_a_full_success():
    assert score(TASK, [CALL, ANSWER]) == 1.0


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([], 0.0),
        ([CALL], 0.5),
        ([CALL, Turn(content="LOOKUP(37)", finish_reason="stop")], 0.5),
        ([CALL, Turn(content="37", finish_reason="length")], 0.5),
        ([CALL, Turn(content="37 ", finish_reason="stop")], 0.5),
        ([Turn(content="LOOKUP(chair)", finish_reason="stop"), ANSWER], 0.0),
        ([Turn(content="LOOKUP(lamp)", finish_reason="length"), ANSWER], 0.0),
        ([Turn(content="37", finish_reason="stop")], 0.0),
    ],
)
def test_anything_else_is_worth_the_turns_that_were_exact(turns: list[Turn], expected: float):
    assert score(TASK, turns) == expected


def test_a_task_says_what_the_agent_is_told_and_scores_itself():
    assert TASK.job() == {"item": "lamp", "price": 37}
    assert TASK.score([CALL, ANSWER]) == score(TASK, [CALL, ANSWER])


def test_no_held_out_word_is_ever_trained_on():
    trained = {task.item for task in itertools.islice(training_tasks(0), 500)}
    assert trained == set(TRAINING)
    assert not trained & set(HELD_OUT)
    assert (len(TRAINING), len(HELD_OUT)) == (70, 36)


def test_tasks_of_one_seed_are_the_same_again_and_each_name_is_used_once():
    first, again = (list(itertools.islice(training_tasks(3), 200)) for _ in range(2))
    assert first == again
    assert len({task.name for task in first}) == 200
    assert held_out_tasks(3, 2) == held_out_tasks(3, 2)
    assert len({task.name for task in held_out_tasks(3, 2)}) == 72
