"""Each mutation can be applied: its text stands in the package once, and its tests are there."""

import pathlib
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def test_mutations_are_of_todays_code_and_tests():
    wrong = []
    for one in tomllib.loads((ROOT / "tests/mutations/mutations.toml").read_text())["mutation"]:
        if (n := (ROOT / one["file"]).read_text().count(one["old"])) != 1:
            wrong.append(f"{one['name']}: its old text stands there {n} times")
        wrong += [f"{one['name']}: no {test}" for test in one["tests"] if not (ROOT / test.partition("::")[0]).exists()]
    assert wrong == []
