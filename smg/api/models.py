"""`/v1/models` and `/v1/models/{id}`: the models that engines are registered for, with aliases and context length."""

from typing import TYPE_CHECKING

import msgspec

from smg.api.base import Reply, Request, Services

if TYPE_CHECKING:
    from smg.pipeline import ModelCard

__all__ = ["list_models", "retrieve_model"]


async def list_models(http: Request, services: Services) -> Reply:
    """Gives all models. Raises NoEngine when there is none, as clients wait for the first one."""
    cards = services.models.cards()
    if not cards:
        raise services.models.none_yet()
    return Reply(body=msgspec.json.encode({"object": "list", "data": [_fields(card) for card in cards]}))


async def retrieve_model(http: Request, services: Services) -> Reply:
    """Gives one model, by its id or an alias. Raises ModelNotFound."""
    model = services.models.resolve(http.params["model"])
    card = next(card for card in services.models.cards() if card.id == model)
    return Reply(body=msgspec.json.encode(_fields(card)))


def _fields(card: "ModelCard") -> dict[str, object]:
    length = card.context_length or None
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "smg",
        "root": card.id,
        "aliases": list(card.aliases),
        "context_length": length,
        "max_model_len": length,
    }
