# What `.ci/run` and `.ci/full` share: a temporary folder, virtual environments in it, the README's commands.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$(mktemp -d)
export PIP_DISABLE_PIP_VERSION_CHECK=1
# A release of somebody else must not fail a landing. `.ci/full newest` says what to write there.
export PIP_CONSTRAINT="$PWD/.ci/constraints.txt"
# Where it is set, each of the thousands of processes that the tests start would compile the package anew.
unset PYTHONDONTWRITEBYTECODE

EXTRAS=torch,sb3,minari,pandas,parquet,pettingzoo,tensordict,plot

# The N-th fenced block of the README that holds a shell command.
command_of_readme() {
    awk -v n="$1" '/^```sh$/ { block++; next } block == n && /^```$/ { exit } block == n' README.md
}

# Run the N-th of the README's commands exactly as it stands there.
run_command_of_readme() {
    command_of_readme "$1"
    bash -euo pipefail -c "$(command_of_readme "$1")"
}

# The newest Python of a version, such as 3.12; nothing where there is none.
python_of() {
    ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python 2>/dev/null | tail -n 1 | grep . || command -v "python$1" || true
}

# Make a virtual environment of this name and enter it; of Python 3 as it is called here, or of the given one.
enter() {
    "${2:-python3}" -m venv "$folder/$1"
    # shellcheck disable=SC1091
    source "$folder/$1/bin/activate"
}
