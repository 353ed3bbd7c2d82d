"""Small nodes that the tests are made of."""

from __future__ import annotations

from typing import Any

from stepwell.nodes import Node


class Trail(Node):
    """Writes its name to the trail and returns the action that it was made with."""

    def __init__(self, action: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.action = action

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> Any:
        shared.setdefault("trail", []).append(self.name or type(self).__name__)
        return self.action


class A(Trail):
    pass


class B(Trail):
    pass


class C(Trail):
    pass
