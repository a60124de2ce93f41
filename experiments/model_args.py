"""The options of commands that play policies with a language model: how to reach it, and what it may cost."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from kb_env.types import KbError
from policies.budget import Limits, Prices
from policies.request import Settings


@dataclass(frozen=True)
class ModelArgs:
    """The language model of a policy that asks one (docs/models.md)."""

    model: str | None = None
    """a name at the endpoint, local (a small model on this machine) or files:DIR (answers come as files)"""
    base_url: str | None = None
    """OpenAI-compatible endpoint; default: OpenAI's"""
    key_file: Path | None = None
    """file with the API key; default: the environment's OPENAI_API_KEY"""
    temperature: float | None = None
    """sampling temperature; default: the server's"""
    reasoning_effort: str | None = None
    """low, medium or high, for models that reason"""
    answer_tokens: int = 4096
    """most tokens of one answer"""
    prompt_tokens: int | None = None
    """tokens that prompts are planned for; default: what fits the model"""
    timeout: float = 120.0
    """seconds without a sign of the server after which an attempt is given up"""
    concurrency: int = 4
    """requests of one episode that may be under way at once"""
    max_requests: int | None = None
    """requests that an episode may make"""
    max_tokens: int | None = None
    """tokens, of prompts and answers, that an episode may use"""
    max_money: float | None = None
    """money that an episode may cost, by --prices"""
    prices: str | None = None
    """IN,OUT: money per million tokens of prompts and of answers"""
    cassette: Path | None = None
    """keep every answer in this file, and take it from there when the same is asked again"""
    replay: bool = False
    """answer from the cassette alone"""


#: A field of this type in a command's Args adds the options under their own names.
ModelOptions = tyro.conf.OmitArgPrefixes[ModelArgs]

NO_MODEL = ModelArgs()

#: Options that decide how answers are reached, not what they are.
FREE = ("base_url", "key_file", "timeout", "concurrency", "cassette", "replay")


def read_prices(text: str) -> Prices:
    """``IN,OUT`` as prices; KbError for anything else."""
    try:
        prompt, answer = (float(word) for word in text.split(","))
    except ValueError as error:
        raise KbError(f"--prices {text}: give two numbers, IN,OUT, per million tokens") from error
    if not (0 <= prompt < float("inf") and 0 <= answer < float("inf")):
        raise KbError(f"--prices {text}: prices are numbers from 0 on")
    return Prices(prompt, answer)


def chat_settings(args: ModelArgs) -> dict[str, Any]:
    """What a policy's constructor takes: ``chat``, or nothing if no model is named.

    Raises:
        KbError: if options contradict each other.
    """
    if args.model is None:
        defaults = ModelArgs()
        given = [
            f.name for f in dataclasses.fields(args) if getattr(args, f.name) != getattr(defaults, f.name)
        ]
        if given:
            raise KbError(
                f"--{given[0].replace('_', '-')} needs a model: add --model NAME, local or files:DIR"
            )
        return {}
    if args.model.startswith("files:") and args.base_url is None:
        folder = args.model.partition(":")[2]
        print(f"questions to answer are in {folder}/requests, see docs/models.md", file=sys.stderr)
    limits = Limits(args.max_requests, args.max_tokens, args.max_money)
    if min(v for v in (limits.requests, limits.tokens, limits.money, 0) if v is not None) < 0:
        raise KbError("--max-requests, --max-tokens and --max-money cannot be negative")
    if min(args.answer_tokens, args.concurrency, args.prompt_tokens or 1) < 1 or args.timeout <= 0:
        raise KbError("--answer-tokens, --prompt-tokens, --concurrency and --timeout must be positive")
    if args.max_money is not None and args.prices is None:
        raise KbError("--max-money needs to know what tokens cost: add --prices IN,OUT")
    settings = Settings(
        args.model,
        args.base_url,
        key_file=args.key_file,
        temperature=args.temperature,
        reasoning_effort=args.reasoning_effort,
        answer_tokens=args.answer_tokens,
        prompt_tokens=args.prompt_tokens,
        timeout=args.timeout,
        concurrency=args.concurrency,
        prices=read_prices(args.prices) if args.prices is not None else Prices(),
        limits=limits,
        cassette=args.cassette,
        replay=args.replay,
    )
    return {"chat": settings}


def deciding(args: ModelArgs) -> Mapping[str, Any]:
    """The options that decide results, for the plan of a run that may be resumed."""
    return {key: value for key, value in dataclasses.asdict(args).items() if key not in FREE}
