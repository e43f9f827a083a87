from pathlib import Path

import pytest

from vlmprof.errors import UserError
from vlmprof.workload.flops import parameters
from vlmprof.workload.settings import data_overrides, load_workload, presets, setting_paths


def test_a_setting_is_named_by_its_full_path_or_an_unambiguous_last_segment() -> None:
    by_segment = load_workload("tiny", ["moe_router_topk=3"])
    by_path = load_workload("tiny", ["model.decoder.moe_router_topk=3"])
    assert by_segment == by_path
    assert by_segment.model.decoder.moe_router_topk == 3
    assert by_segment.hash8 != load_workload("tiny").hash8


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("seq_lenght=128", "did you mean 'data.seq_length'?"),
        ("model.decodr.num_layers=2", "did you mean 'model.decoder.num_layers'?"),
        ("num_layers=2", "is ambiguous: write model.encoder.num_layers or model.decoder.num_layers"),
        ("seq_length=many", "is 'many', but it takes a whole number above 0"),
        ("seq_length=0", "is 0, but it takes a whole number above 0"),
        ("recompute=some", "it takes one of none, selective, full"),
        ("freeze_vision=1", "it takes true or false"),
        ("recompute_modules=mlp", "it takes a list of names"),
        ("seq_length", "--set takes KEY=VALUE"),
        ("moe_router_topk=9", "moe_router_topk 9 is above model.decoder.num_moe_experts 8"),
        ("model.encoder.num_attention_heads=3", "does not divide by model.encoder.num_attention_heads 3"),
        ("model.decoder.num_attention_heads=5", "does not divide by model.decoder.num_query_groups 2"),
        ("layout.tp=2", "is not built yet"),
        ("max_pixels=100", "smaller than the least picture"),
        ("cuda_graph=local cuda_graph_scope=['attn']", "captures no attention of an MoE layer"),
        ("cuda_graph=local recompute=full", "cannot hold layers that knobs.recompute=full runs again"),
        ("cuda_graph_scope=['attn']", "needs knobs.cuda_graph=local or transformer_engine"),
        ("global_batch_size=3", None),
        ("micro_batch_size=3", "does not divide by knobs.micro_batch_size 3"),
    ],
)
def test_a_wrong_setting_is_one_sentence(assignment: str, expected: str | None) -> None:
    assignments = assignment.split()
    if expected is None:
        load_workload("tiny", assignments)
        return
    with pytest.raises(UserError) as error:
        load_workload("tiny", assignments)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match="there is no preset 'tinny': did you mean 'tiny'"):
        load_workload("tinny")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base = 'tiny'\n[data\n", "is not valid TOML"),
        ("base = 'tiny'\n[data]\nseq_lenght = 3\n", "did you mean 'data.seq_length'"),
        ("base = 'tiny'\ndata = 3\n", "setting 'data'"),
        ("[model]\n", "is missing"),
        ("base = 'own.toml'\n", "is its own base"),
        ("base = 3\n", "base must be the name"),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, expected: str) -> None:
    Path("own.toml").write_text(text)
    with pytest.raises(UserError, match=r"own\.toml") as error:
        load_workload("own.toml")
    assert expected in str(error.value)


def test_a_missing_file_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"there is no workload file 'nowhere\.toml'"):
        load_workload("nowhere.toml")


def test_a_file_may_change_a_preset_and_a_local_preset_comes_first() -> None:
    Path("presets").mkdir()
    Path("presets/mine.toml").write_text("base = 'tiny'\n[data]\nseq_length = 128\n")
    workload = load_workload("mine")
    assert (workload.name, workload.data.seq_length) == ("mine", 128)
    assert workload.model == load_workload("tiny").model


def test_the_hash_knows_the_work_and_not_the_name() -> None:
    Path("other.toml").write_text("base = 'tiny'\ndescription = 'the same under another name'\n")
    assert load_workload("other.toml").hash8 == load_workload("tiny").hash8
    assert load_workload("tiny", ["seed=2"]).hash8 != load_workload("tiny").hash8


def test_a_setting_at_its_default_does_not_change_the_hash() -> None:
    assert load_workload("tiny", ["recompute=none"]).hash8 == load_workload("tiny").hash8


def test_the_hash_of_own_data_is_of_its_content_not_its_place(tmp_path: Path) -> None:
    hashes = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.png").write_bytes(b"12345")
        hashes.append(load_workload("tiny", [], data_overrides(str(folder))).hash8)
    assert hashes[0] == hashes[1]
    (tmp_path / "there" / "b.png").write_bytes(b"1")
    assert load_workload("tiny", [], data_overrides(str(tmp_path / "there"))).hash8 != hashes[0]


def test_data_that_is_nothing_is_one_sentence() -> None:
    with pytest.raises(UserError, match="'reel' is neither real, mock, text-only nor an existing"):
        data_overrides("reel")


def test_published_sizes() -> None:
    small, large = (parameters(load_workload(f"qwen3-vl-{name}")) for name in ("30b-a3b", "235b-a22b"))
    assert small["language_model"] == pytest.approx(30.5e9, rel=0.01)
    assert small["active"] == pytest.approx(3.3e9 + small["vision_model"], rel=0.05)
    assert large["language_model"] == pytest.approx(235.1e9, rel=0.01)
    assert large["active"] == pytest.approx(22.2e9 + large["vision_model"], rel=0.05)


def test_every_preset_is_possible_and_every_path_is_listed() -> None:
    assert {"tiny", "qwen3-vl-30b-a3b", "qwen3-vl-235b-a22b"} <= set(presets())
    for name in presets():
        load_workload(name)
    assert {"seed", "model.encoder.patch_size", "knobs.dispatcher"} <= set(setting_paths())


def test_a_data_path_in_a_file_has_a_fingerprint_and_gives_way_to_a_kind(tmp_path: Path) -> None:
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics" / "a.png").write_bytes(b"12345")
    Path("own.toml").write_text('base = "tiny"\n[data]\nkind = "path"\npath = "pics"\nfingerprint = "chosen"\n')
    by_file, by_flag = load_workload("own.toml"), load_workload("tiny", [], data_overrides("pics"))
    assert by_file.hash8 == by_flag.hash8
    assert by_file.data.fingerprint not in ("", "chosen")
    assert load_workload("own.toml", [], data_overrides("mock")).data.path == ""


@pytest.mark.parametrize(
    "assignment", ["seed=99999999999999999999", "moe_aux_loss_coeff=nan", "moe_aux_loss_coeff=inf"]
)
def test_a_number_out_of_bounds_is_one_sentence(assignment: str) -> None:
    with pytest.raises(UserError, match="setting '"):
        load_workload("tiny", [assignment])
