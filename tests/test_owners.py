"""Modules read off tensor names."""

from __future__ import annotations

from bisect_litert.graphs.owners import Owners, levels, reaches

MODULES = ["enc", "enc.0", "enc.0.fc", "enc.1", "enc.1.fc", "enc.1.my_norm", "head"]


def test_a_name_has_levels() -> None:
    assert levels("m.Net/torch.nn.Linear_fc;12") == ["m.Net", "torch.nn.Linear_fc"]
    assert levels("serving_default_output_0_output") == ["serving_default_output_0_output"]


def test_a_path_is_reached_only_at_its_end() -> None:
    assert reaches(["m.Net", "m.Block_1", "torch.nn.Linear_fc"], ["enc", "1", "fc"]) == 2
    assert reaches(["m.Net", "m.Block_1"], ["enc", "1", "fc"]) == 0


def test_the_deepest_module_of_the_block_is_meant() -> None:
    name = "m.Net/m.Block_1/torch.nn.Linear_fc;3"
    assert Owners(MODULES).module_of(name, "enc.1") == "enc.1.fc"
    # Indexed levels may be missing from a name; then the block decides.
    assert Owners(MODULES).module_of("m.Net/torch.nn.Linear_fc;3", "enc.0") == "enc.0.fc"


def test_attribute_names_may_hold_underscores() -> None:
    assert Owners(MODULES).module_of("m.Net/m.Block_1/m.Norm_my_norm", "enc.1") == "enc.1.my_norm"


def test_fused_names_and_none() -> None:
    assert Owners(MODULES).module_of("m.Net/m.Block_1;;m.Net/m.Block_1/torch.nn.Linear_fc;", "enc.1") == "enc.1.fc"
    assert Owners(MODULES).module_of("serving_default_output_0_output", "enc.1") == ""
