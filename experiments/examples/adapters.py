"""The environment behind other frameworks' interfaces: one text core, a few lines for each.

    SkyRL-Gym:  skyrl_env()      a BaseTextEnv: init(prompt) -> (messages, info); step(answer) -> a dict
    OpenEnv:    openenv_env()    an Environment: reset(seed) and step(action) -> Observation; state

Each class is made when it is asked for, so that none of the frameworks has to be installed for the others.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

import kb_env
from policies import render


class TextCore:
    """Prompts in, answers out. ``settings`` are those of :class:`kb_env.env.CudaEnv`."""

    def __init__(self, **settings: Any) -> None:
        self.env: gym.Env[Any, Any] = kb_env.make("kb/CudaSim-v0", **settings)

    def reset(self, seed: int | None) -> tuple[str, dict[str, float]]:
        observation, info = self.env.reset(seed=seed)
        return self._prompt(observation), info

    def step(self, answer: str) -> tuple[str, float, bool, dict[str, float]]:
        observation, reward, terminated, truncated, info = self.env.step(answer)
        return self._prompt(observation), float(reward), terminated or truncated, info

    def _prompt(self, observation: dict[str, Any]) -> str:
        parts = [
            render.task_part(observation),
            render.source_part(str(observation["source"])),
            render.feedback_part(observation),
        ]
        return f"{render.ROLE}\n\n{render.fit(parts, 12_000)}\n\n{render.ANSWER_FORMAT}"


def skyrl_env() -> type:
    """The environment as SkyRL-Gym's: ``extras`` are settings, ``prompt`` what the dataset puts first."""
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

    class SkyRL(BaseTextEnv):  # type: ignore[misc, no-any-unimported]
        def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
            super().__init__()
            settings = dict(extras or {})
            self.seed = settings.pop("seed", None)
            self.core = TextCore(**settings)

        def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
            text, info = self.core.reset(self.seed)
            return [*prompt, {"role": "user", "content": text}], info

        def step(self, action: str) -> Any:
            self.turns += 1
            text, reward, done, info = self.core.step(action)
            said = [] if done else [{"role": "user", "content": text}]
            return BaseTextEnvStepOutput(observations=said, reward=reward, done=done, metadata=info)

        def close(self) -> None:
            self.core.env.close()

    return SkyRL


def openenv_env() -> tuple[type, type]:
    """The environment as OpenEnv's, and its type of action (with a field ``answer``)."""
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Answer(Action):  # type: ignore[misc, no-any-unimported]
        answer: str

    class Prompt(Observation):  # type: ignore[misc, no-any-unimported]
        prompt: str

    class OpenEnv(Environment):  # type: ignore[misc, no-any-unimported]
        def __init__(self, **settings: Any) -> None:
            super().__init__()
            self.core, self._state = TextCore(**settings), State()

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            self._state = State(episode_id=episode_id, step_count=0)
            text, info = self.core.reset(seed)
            return Prompt(prompt=text, done=False, reward=None, metadata=info)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            text, reward, done, info = self.core.step(action.answer)
            self._state.step_count += 1
            return Prompt(prompt=text, done=done, reward=reward, metadata=info)

        @property
        def state(self) -> Any:
            return self._state

    return OpenEnv, Answer
