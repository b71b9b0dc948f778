"""Workers have the settings of the sampler's process, as they are at each call."""

import decimal
import locale
import os
import subprocess
import sys
import time
import types
import warnings

import gymnasium
import numpy as np
import pytest

from streamsampler import EnvManager, LocalSampler, MultiprocessingSampler, SerialEnvManager
from streamsampler.core import settings
from streamsampler.core.settings import SETTINGS, ProcessSettings, SettingsInForce
from tests.contracts.conftest import LANES, PARENT, RAY, SLOW_QUEUES, on, slow
from tests.patience import PATIENCE


class Looks(gymnasium.Env):
    """Says in its infos which settings its process has."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), looked()

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}


class TheWarning(UserWarning):
    pass


def looked():
    try:
        warnings.warn("look", TheWarning, stacklevel=1)
        raised = False
    except TheWarning:
        raised = True
    return {
        "divide": np.geterr()["divide"],
        "third": str(decimal.Decimal(1) / 3),
        "locale": locale.setlocale(locale.LC_ALL),
        "recursion": sys.getrecursionlimit(),
        "raised": raised,
        "variable": os.environ.get("LOOKED_AT", "none"),
        "zone": time.tzname[0],
        "directory": os.getcwd(),
    }


@pytest.fixture
def restored(monkeypatch):
    """Let what a test sets be as it was afterwards."""
    before, limit, context = locale.setlocale(locale.LC_ALL), sys.getrecursionlimit(), decimal.getcontext().copy()
    monkeypatch.setenv("TZ", "UTC0")
    with np.errstate(), warnings.catch_warnings():
        yield
    decimal.setcontext(context)
    sys.setrecursionlimit(limit)
    locale.setlocale(locale.LC_ALL, before)
    monkeypatch.undo()
    time.tzset()


def set_all(monkeypatch, tmp_path, number):
    """Give all settings other values, by number."""
    np.seterr(divide=("raise", "ignore")[number])
    decimal.getcontext().prec = (7, 9)[number]
    locale.setlocale(locale.LC_ALL, ("C", "C.UTF-8")[number])
    sys.setrecursionlimit((4321, 1234)[number])
    warnings.simplefilter(("error", "ignore")[number], TheWarning)
    monkeypatch.setenv("LOOKED_AT", str(number))
    monkeypatch.setenv("TZ", ("AAA3", "BBB4")[number])
    time.tzset()
    folder = tmp_path / str(number)
    folder.mkdir()
    monkeypatch.chdir(folder)
    return looked()


HERE_ALONE = ("variable", "zone", "directory")  # the nodes of a cluster have their own


def shown(batch, engine):
    infos = batch.episode_infos
    each = [{key: column[number] for key, column in infos.items() if key[0] != "_"} for number in range(len(batch))]
    return [{key: value for key, value in it.items() if engine != "ray" or key not in HERE_ALONE} for it in each]


@on("local", "waiting", "processes", PARENT, *slow("vec processes", *LANES), *slow("queues fork", "queues spawn"), RAY)
def test_workers_have_the_settings_of_the_script_at_each_call(make_sampler, engine, restored, monkeypatch, tmp_path):
    sampler = make_sampler("random", Looks, n_workers=2, seed=1)
    for number in range(2):
        expected = set_all(monkeypatch, tmp_path, number)
        if engine == "ray":
            expected = {key: value for key, value in expected.items() if key not in HERE_ALONE}
        assert shown(sampler.obtain_trajectories(6), engine) == [expected] * 6


@pytest.mark.parametrize("make", [SerialEnvManager, EnvManager])
def test_environments_of_managers_have_them_from_the_next_reset_on(make, restored, monkeypatch, tmp_path):
    with make(Looks, n_envs=2, seed=1) as manager:
        for number in range(2):
            expected = set_all(monkeypatch, tmp_path, number)
            infos = manager.reset().infos
            assert [{key: infos[key][env_id] for key in expected} for env_id in range(2)] == [expected] * 2


@on("processes", *SLOW_QUEUES)
def test_a_worker_in_the_place_of_a_dead_one_has_the_latest(make_sampler, engine, restored, monkeypatch, tmp_path):
    sampler = make_sampler("random", Looks, seed=1)
    set_all(monkeypatch, tmp_path, 0)
    sampler.obtain_trajectories(1)
    expected = set_all(monkeypatch, tmp_path, 1)
    sampler.obtain_trajectories(1)
    os.kill(sampler.worker_pids()[0], 9)
    assert shown(sampler.obtain_trajectories(2), engine) == [expected] * 2


class SetsOwn(Looks):
    """Sets something by itself, when it is made."""

    def __init__(self):
        np.seterr(over="raise")

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"over": np.geterr()["over"], "variable": os.environ.get("LOOKED_AT", "none")}


def test_what_an_environment_sets_stays_where_the_script_changes_something_else(restored, monkeypatch):
    with MultiprocessingSampler("random", SetsOwn, n_workers=1, seed=1) as sampler:
        for value in ("1", "2"):
            monkeypatch.setenv("LOOKED_AT", value)
            infos = sampler.obtain_trajectories(2).episode_infos
            assert (infos["over"].tolist(), infos["variable"].tolist()) == (["raise"] * 2, [value] * 2)


def test_what_modules_set_when_workers_import_them_is_set_back(restored, monkeypatch, tmp_path):
    """The script has imported the module as well, and has decided otherwise since."""
    (tmp_path / "sets_errors.py").write_text(
        "import gymnasium, numpy as np\nnp.seterr(under='raise')\n"
        "class Env(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.zeros(1, np.float32), {'under': np.geterr()['under']}\n"
        "    def step(self, action): return np.zeros(1, np.float32), 1.0, True, False, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import sets_errors  # type: ignore[import-not-found]

    np.seterr(under="ignore")
    with MultiprocessingSampler("random", sets_errors.Env, n_workers=1, seed=1) as sampler:
        assert sampler.obtain_trajectories(1).episode_infos["under"].tolist() == ["ignore"]
    with EnvManager(sets_errors.Env, n_envs=1, seed=1) as manager:
        assert manager.reset().infos["under"].tolist() == ["ignore"]


LIBRARY = """
import warnings
class LibraryWarning(UserWarning): pass
warnings.filterwarnings("ignore", category=LibraryWarning)
"""


class Loads(Looks):
    def reset(self, *, seed=None, options=None):
        was_loaded = "library_that_filters" in sys.modules
        from library_that_filters import LibraryWarning  # type: ignore[import-not-found]

        warnings.warn("look", LibraryWarning, stacklevel=1)
        return np.zeros(1, np.float32), {"was_loaded": was_loaded}


def test_workers_do_not_load_what_the_script_has_loaded_because_it_filters_its_own_warnings(
    restored, monkeypatch, tmp_path
):
    """As torch, pandas and others do when they are imported."""
    (tmp_path / "library_that_filters.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    import library_that_filters

    warnings.simplefilter("error")
    warnings.simplefilter("ignore", library_that_filters.LibraryWarning)
    with MultiprocessingSampler("random", Loads, n_workers=1, seed=1, check=None) as sampler:
        assert sampler.obtain_trajectories(2).episode_infos["was_loaded"].tolist() == [False, True]


class Divides(Looks):
    """Rewards are a third, as precisely as decimals are computed."""

    def step(self, action):
        return np.zeros(1, np.float32), float(decimal.Decimal(1) / 3), self.np_random.random() < 0.1, False, {}


@on("processes", *SLOW_QUEUES)
def test_with_a_lag_a_batch_has_the_settings_of_its_own_call(make_sampler, restored):
    """Workers begin with it in the call before, under the settings of that one."""
    sampler = make_sampler("random", Divides, n_workers=2, seed=1, staleness=1)
    with LocalSampler("random", Divides, seed=1, staleness=1) as twin:
        for precision in (9, 9, 5, 7, 7):
            decimal.getcontext().prec = precision
            assert sampler.obtain_samples(200) == twin.obtain_samples(200)


class Hashes(Looks):
    """Says how its process hashes."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"hash": hash("harbour")}


START_METHODS = [pytest.param({"start_method": it}, marks=pytest.mark.slow) for it in ("spawn", "forkserver")]
SAMPLED = """
from gymnasium.envs.classic_control import CartPoleEnv
from streamsampler import MultiprocessingSampler

class Hashes(CartPoleEnv):
    def reset(self, **how):
        return super().reset(**how)[0], {{"hash": hash("harbour")}}

if __name__ == "__main__":
    with MultiprocessingSampler("random", Hashes, n_workers={n}, seed=1, check=None, **{options}) as sampler:
        infos = sampler.obtain_exact_trajectories(2).episode_infos
    print(*sorted(set(infos["hash"].tolist())), hash("harbour"))
"""


def hashes(*flags, n_workers=1, options=None, **variables):
    """Return the hashes that a script of its own has in its workers, and its own one."""
    code = SAMPLED.format(n=n_workers, options=options or {})
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"} | variables
    command = [sys.executable, *flags, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=True)
    *of_workers, own = map(int, done.stdout.split())
    return of_workers, own, done.stderr


@pytest.mark.parametrize("options", [{}, *START_METHODS])
def test_all_workers_of_all_runs_hash_alike(options):
    (first,), *_ = hashes(options=options)
    assert hashes(n_workers=3, options=options)[0] == [first]


@on(RAY)
def test_actors_of_a_cluster_hash_as_other_workers_do(make_sampler):
    found = make_sampler("random", Hashes, n_workers=2, seed=1).obtain_exact_trajectories(1).episode_infos["hash"]
    assert set(found.tolist()) == set(hashes()[0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, *START_METHODS])
def test_a_hash_seed_of_the_script_is_that_of_its_workers(options):
    of_workers, own, _ = hashes(n_workers=2, options=options, PYTHONHASHSEED="7")
    assert of_workers == [own]
    assert hashes(options=options)[0] != [own]


@pytest.mark.slow
def test_forked_workers_hash_as_the_script_does():
    of_workers, own, _ = hashes(n_workers=2, options={"start_method": "fork"})
    assert of_workers == [own]


@pytest.mark.slow
def test_a_script_that_ignores_variables_has_workers_that_hash_alike():
    assert hashes("-E")[0] == hashes()[0]


@pytest.mark.slow
def test_workers_that_cannot_hash_alike_are_a_warning():
    assert "PYTHONHASHSEED=0" in hashes("-E", options={"start_method": "spawn"})[2]
    assert "PYTHONHASHSEED" not in hashes(options={"start_method": "spawn"})[2]


def test_each_setting_can_be_read_compared_and_set_to_what_it_is(restored):
    here = ProcessSettings.of_this_process()
    assert here == ProcessSettings.of_this_process()
    SettingsInForce(portable=True).apply(here)
    assert ProcessSettings.of_this_process() == here
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)


def test_environment_variables_are_read_again_where_one_has_changed(monkeypatch):
    before = ProcessSettings.of_this_process().environ
    assert ProcessSettings.of_this_process().environ is before
    for value in ("1", "2"):
        monkeypatch.setenv("STREAMSAMPLER_TEST_OF_SETTINGS", value)
        assert ProcessSettings.of_this_process().environ == {**before, "STREAMSAMPLER_TEST_OF_SETTINGS": value}
    monkeypatch.delenv("STREAMSAMPLER_TEST_OF_SETTINGS")
    assert ProcessSettings.of_this_process().environ == before


def test_a_setting_that_a_worker_cannot_have_is_a_warning(restored, caplog):
    SettingsInForce(portable=True).apply(ProcessSettings({}, (), "/", {"locale": "xx_XX.none"}))
    assert "locale of the sampler's process, 'xx_XX.none', cannot be set in this worker" in caplog.text


def test_a_module_is_loaded_for_a_value_that_is_not_its_default(monkeypatch):
    """As torch and jax have it, whose import takes seconds."""
    found = []
    jax = types.ModuleType("jax")
    jax.config = types.SimpleNamespace(jax_enable_x64=False, update=lambda *given: found.append(given))  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setattr(settings, "_imported", lambda name: found.append(name) or jax)
    SettingsInForce(portable=True).apply(ProcessSettings({}, (), "/", {"jax_enable_x64": False}))
    assert found == []
    SettingsInForce(portable=True).apply(ProcessSettings({}, (), "/", {"jax_enable_x64": True}))
    assert found == ["jax", ("jax_enable_x64", True)]


def test_what_is_set_as_it_was_is_not_set_again(monkeypatch):
    """Workers with torch agents would import 800 modules more, which takes two seconds and adds warning filters."""
    calls = []
    torch = types.ModuleType("torch")
    torch.are_deterministic_algorithms_enabled = lambda: bool(calls)  # type: ignore[attr-defined]
    torch.is_deterministic_algorithms_warn_only_enabled = lambda: False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms = lambda *args, **options: calls.append((args, options))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    name = "torch's deterministic algorithms"
    SettingsInForce(portable=True).apply(ProcessSettings({}, (), "/", {name: (False, False)}))
    assert calls == []
    for _ in range(2):
        SettingsInForce(portable=True).apply(ProcessSettings({}, (), "/", {name: (True, False)}))
    assert calls == [((True,), {"warn_only": False})]
