"""Models whose responses are kept, so that the next attempt of a turn makes the same calls of tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from agents import Model, ModelProvider, RunConfig
from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputItemDoneEvent

if TYPE_CHECKING:
    from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

__all__ = ["KeptModel", "KeptResponses", "with_kept_responses"]


class KeptResponses(Protocol):
    """Where responses are kept."""

    def take_response(self) -> Any:
        """Return the response that an earlier attempt has kept, if it is the next one."""

    async def keep_response(self, response: dict[str, Any]) -> None:
        """Keep a response that calls tools, before they run."""


class KeptModel(Model):
    """A model that gives a kept response instead of making the request again."""

    def __init__(self, model: Model, responses: KeptResponses) -> None:
        self._model = model
        self._responses = responses

    async def get_response(self, *args: Any, **options: Any) -> Any:
        return await self._model.get_response(*args, **options)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        kept = self._responses.take_response()
        if kept is not None:
            response = Response.model_validate(kept)
            for place, item in enumerate(response.output):
                yield ResponseOutputItemDoneEvent(
                    item=item, output_index=place, sequence_number=place, type="response.output_item.done"
                )
            yield ResponseCompletedEvent(
                response=response, sequence_number=len(response.output), type="response.completed"
            )
            return
        items: list[Any] = []
        async for event in self._model.stream_response(*args, **options):
            if event.type == "response.output_item.done":
                items.append(event.item)
            elif event.type == "response.completed":
                # Some models leave the output of the last event empty.
                whole = event.response.model_copy(update={"output": event.response.output or items})
                if any(item.type != "message" for item in whole.output):
                    await self._responses.keep_response(whole.model_dump(mode="json", exclude_unset=True))
            yield event

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._model.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)


class KeptModels(ModelProvider):
    """A provider of such models."""

    def __init__(self, provider: ModelProvider, responses: KeptResponses) -> None:
        self._provider = provider
        self._responses = responses

    def get_model(self, model_name: str | None) -> Model:
        return KeptModel(self._provider.get_model(model_name), self._responses)

    async def aclose(self) -> None:
        await self._provider.aclose()


def with_kept_responses(config: RunConfig, responses: KeptResponses) -> RunConfig:
    """Return a configuration whose models keep their responses."""
    model = KeptModel(config.model, responses) if isinstance(config.model, Model) else config.model
    return replace(config, model=model, model_provider=KeptModels(config.model_provider, responses))
