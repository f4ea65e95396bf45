"""The extension of griffe for docs/reference/api.md: what a reader of a static page needs beside
the docstrings.
"""

from __future__ import annotations

from typing import Any

import griffe

from connector.records import views

MARKS = {
    "Annotated",
    *(name for name, value in vars(views).items() if hasattr(value, "__metadata__")),
}
"""The names of annotations that say how a value is shown or checked, beside its type."""


class PublicNames(griffe.Extension):
    """Makes each name of `__all__` the object that a program imports, lists the values of an
    enumeration, gives an undocumented override the docstring of what it overrides, and shows the
    type of an annotated field alone.
    """

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.annotation = _type_of(attr.annotation)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in (pkg, *(member for member in pkg.modules.values() if not member.is_alias)):
            names = [str(name) for name in module.exports or ()]
            for name in names:
                _export(module, name)
            for name in names:
                public = module.members[name]
                public = public.final_target if isinstance(public, griffe.Alias) else public
                if isinstance(public, griffe.Class):
                    _list_values(public)
                    _inherit_docstrings(public)


def _export(module: griffe.Module, name: str) -> None:
    """A function in a module of its own name, for example `services.run`, is the function."""
    member = module.members[name]
    if isinstance(member, griffe.Module):
        function = module.get_member(module.imports[name].removeprefix(f"{module.path}."))
        module.members[name] = griffe.Alias(name, function, parent=module)


def _type_of(annotation: str | griffe.Expr | None) -> str | griffe.Expr | None:
    if isinstance(annotation, griffe.ExprName) and annotation.name in ("Time", "TimeOrNull"):
        return "int"
    if not isinstance(annotation, griffe.ExprSubscript) or str(annotation.left) not in MARKS:
        return annotation
    parts = annotation.slice
    return _type_of(parts.elements[0] if isinstance(parts, griffe.ExprTuple) else parts)


def _list_values(cls: griffe.Class) -> None:
    if cls.docstring and any(str(base).endswith("Enum") for base in cls.bases):
        values = ", ".join(f"`{name}`" for name in cls.attributes if name.isupper())
        cls.docstring.value += f"\n\nValues: {values}."


def _inherit_docstrings(cls: griffe.Class) -> None:
    for name, member in cls.members.items():
        if not member.is_alias and not member.docstring:
            overridden = (base.members[name] for base in cls.mro() if name in base.members)
            member.docstring = next((base.docstring for base in overridden if base.docstring), None)
