"""Numbers in, numbers out: the wrappers keep Gymnasium's contract and agree with the catalogue."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from paper import PaperEvaluator

from kb_env.env import CudaEnv
from kb_env.task import builtin_names, load_task
from kb_env.transforms import CATALOGUE, VARIANTS
from kb_env.types import KbError, Status
from kb_env.wrappers import FLAT_NAMES, PAIRS, DiscreteEdits, FlatProfile

TASK = load_task("softmax")


def paper_env(**kwargs: Any) -> CudaEnv:
    return CudaEnv(TASK, evaluator=PaperEvaluator(), **kwargs)


gym.register("test/Paper-v0", entry_point=paper_env)


def stacks() -> list[gym.Env]:
    def base() -> gym.Env:
        return gym.make("test/Paper-v0", disable_env_checker=True)

    return [
        base().unwrapped,
        DiscreteEdits(base()),
        DiscreteEdits(base(), multi=True),
        FlatProfile(base()),
        FlatProfile(DiscreteEdits(base())),
        FlatProfile(DiscreteEdits(base(), multi=True)),
        DiscreteEdits(FlatProfile(base())),
    ]


@pytest.mark.parametrize("number", range(7))
def test_gymnasium_accepts_every_stack(number: int) -> None:
    env = stacks()[number]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is different from the unwrapped version.*")
        check_env(env)
    env.close()


@pytest.mark.parametrize("multi", [False, True])
def test_actions_are_the_same_for_every_task_and_masks_say_which_apply(multi: bool) -> None:
    spaces = set()
    for name in builtin_names():
        env = DiscreteEdits(CudaEnv(name, evaluator=PaperEvaluator()), multi=multi)
        env.reset(seed=1)
        mask = env.action_masks()
        assert mask.any()
        spaces.add((str(env.action_space), mask.shape))
    assert len(spaces) == 1
    assert mask.shape == ((len(CATALOGUE) + 1 + VARIANTS,) if multi else (len(PAIRS) + 1,))


def test_masked_actions_edit_and_others_are_bad_edits() -> None:
    env = DiscreteEdits(CudaEnv(TASK, evaluator=PaperEvaluator(), max_steps=500))
    bad = list(Status).index(Status.BAD_EDIT)
    for action in range(len(PAIRS) + 1):
        env.reset(seed=1)
        applies = env.action_masks()[action]
        observation, _, _, _, info = env.step(action)
        assert (info["status"] != bad) == applies
        assert (observation["source"] != TASK.source) == (applies and action < len(PAIRS))
    with pytest.raises(KbError, match="no action"):
        env.step(len(PAIRS) + 1)


def test_flat_observations_are_named_finite_and_inside() -> None:
    env = FlatProfile(DiscreteEdits(CudaEnv(TASK, evaluator=PaperEvaluator(), max_steps=5)))
    observation, _ = env.reset(seed=1)
    assert dict(zip(FLAT_NAMES, observation, strict=True))["steps_left"] == 1.0
    generator = np.random.default_rng(1)
    done = False
    while not done:
        observation, _, terminated, truncated, _ = env.step(generator.choice(np.flatnonzero(masks(env))))
        assert observation in env.observation_space
        assert observation.dtype == np.float32
        done = terminated or truncated
    facts = dict(zip(FLAT_NAMES, observation, strict=True))
    assert facts["has_dram_percent"] == 1
    assert facts["profile_dram_percent"] == pytest.approx(np.log(51))
    assert facts["steps_left"] == 0
    assert facts["count_kernels"] == pytest.approx(np.log(2))


def masks(env: gym.Env) -> np.ndarray:
    """The masks as public libraries fetch them."""
    return env.get_wrapper_attr("action_masks")()


@pytest.mark.parametrize("name", ["kb/Cuda-v0", "kb/CudaSim-v0", "kb/CudaReplay-v0"])
def test_gymnasium_accepts_every_id_bare_and_wrapped(name: str) -> None:
    def base() -> gym.Env:
        return gym.make(name, task=TASK, evaluator=PaperEvaluator(), disable_env_checker=True)

    for env in (base().unwrapped, FlatProfile(base()), FlatProfile(DiscreteEdits(base(), multi=True))):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is different from the unwrapped version.*")
            check_env(env)
        env.close()


def flat_env() -> gym.Env:
    return FlatProfile(DiscreteEdits(paper_env()))


def test_stacks_pickle_and_run_in_vectors() -> None:
    env = FlatProfile(DiscreteEdits(paper_env()))
    copy = pickle.loads(pickle.dumps(env))
    copy.reset(seed=1)
    parallel = gym.vector.AsyncVectorEnv([flat_env] * 2, shared_memory=False)
    observations, _ = parallel.reset(seed=3)
    assert observations.shape == (2, len(FLAT_NAMES))
    _, rewards, _, _, infos = parallel.step(np.array([len(PAIRS), 0]))
    assert rewards.shape == infos["best_speedup"].shape == (2,)
    parallel.close()
    vector = gym.vector.SyncVectorEnv([lambda: FlatProfile(DiscreteEdits(paper_env()))] * 2)
    observations, _ = vector.reset(seed=3)
    assert observations.shape == (2, len(FLAT_NAMES))
    observations, rewards, *_ = vector.step(np.array([len(PAIRS), 0]))
    assert rewards.shape == (2,)
    vector.close()


def test_wrapping_something_else_is_told() -> None:
    env = DiscreteEdits(gym.make("CartPole-v1"))  # type: ignore[arg-type]
    with pytest.raises(KbError, match="wraps a CudaEnv"):
        env.action_masks()
