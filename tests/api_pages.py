"""The extension of griffe for docs/reference/api.md: what a reader of a static page needs beside
the docstrings.
"""

from __future__ import annotations

from typing import Any

import griffe


class PublicNames(griffe.Extension):
    """Makes each name of `__all__` the object that a program imports, lists the values of an
    enumeration, and gives an undocumented override the docstring of what it overrides.
    """

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


def _list_values(cls: griffe.Class) -> None:
    if cls.docstring and any(str(base).endswith("Enum") for base in cls.bases):
        values = ", ".join(f"`{name}`" for name in cls.attributes if name.isupper())
        cls.docstring.value += f"\n\nValues: {values}."


def _inherit_docstrings(cls: griffe.Class) -> None:
    for name, member in cls.members.items():
        if not member.is_alias and not member.docstring:
            overridden = (base.members[name] for base in cls.mro() if name in base.members)
            member.docstring = next((base.docstring for base in overridden if base.docstring), None)
