"""The benchmark's machinery without a GPU: its catalogue, records, worker, tables and the reading of counters."""

import copy
import io
import os
import sys

import pytest
import torch

from bench import peers
from bench import warm as warm_
from bench import worker as worker_
from bench.case import DTYPES, BenchCase
from bench.cases import all_cases, select
from bench.counters import segments
from bench.measure import verdict
from bench.more_tables import memory_table, prediction_table
from bench.peers import PEERS, parse
from bench.records import Record, merge
from bench.suite import build, build_work, told
from bench.tables import back_to_back, chain_table, fraction, geometric_mean, group_table, product_table, reached, row_table
from bench.timing import summary
from bench.worker import Worker
from test.numerics.random_families import FAMILIES, drawn

HEADLINE = [
    "nerf_256k", "dlrm_2048", "mgn_20k_120k", "gcast_512", "gpt3_mlp_64", "gpt3_mlp_512", "gpt3_mlp_768", "gpt3_mlp_1024",
    "gpt3_mlp_1536", "gpt3_mlp_2048", "llama8b_tok_b1", "llama8b_tok_b16", "llama8b_prefill_128", "stitch_4096x1024",
]  # fmt: skip


def entry(name: str, group: str = "headline", **more):
    spread = {"median": 2.0, "min": 1.9, "p10": 1.9, "p90": 2.1, "samples": 30}
    times = {"kitsune": spread, "kitsune, graph": {**spread, "median": 1.0}, "eager": {**spread, "median": 3.0}}
    base = {
        "case": name, "group": group, "ok": True, "error": 1e-3, "floor": 0.5, "goal": 2.0, "measure": "speedup", "launches": 1,
        "milliseconds": times, "missing": {}, "operations": 10, "bytes": 10,
    }  # fmt: skip
    base |= more
    return base | verdict(base)


def test_the_headline_is_complete_and_patterns_select():
    assert [c.name for c in select([])] == HEADLINE
    assert [c.name for c in select(["gpt3_mlp_6*", "stitch*"])] == ["gpt3_mlp_64", "stitch_4096x1024"]
    assert len(select(["mlp"])) == 12 * 3 * 3 and len(select(["product"])) == 7 * 4
    with pytest.raises(ValueError, match="no case and no group matches 'llama9'"):
        select(["llama9"])


@pytest.mark.parametrize(
    "group",
    ["mlp", "product", "map", "rows", "gemv", "attention", "conv", "conv_pair", "conv_pair_last", "depthwise", "roofline"],
)
def test_cases_of_the_sweeps_are_functions_of_their_names(group):
    for case in select([group]):
        model, args = case.make("meta", False)
        out = model(*args)
        assert out.numel() > 0 and out.dtype == args[0].dtype
        if group in ("map", "rows"):
            read = sum(a.numel() * a.element_size() for a in args)
            assert 0.99 * 2**30 < read <= 2**30
        if group == "product":
            m, n, _ = map(int, case.name.split("_")[1].split("x"))
            assert out.shape == (m, n)


def test_random_models_are_the_same_on_every_device():
    cases = select(["random"])
    assert len(cases) >= 300 and {case.name.split("_")[1] for case in cases} == {f.__name__ for f in FAMILIES}
    for case in cases[:9]:
        model, args = case.make("cpu", False)
        again, same = case.make("cpu", True)
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(args, same, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
        assert case.by_eager and all(w.dtype in (DTYPES[case.dtype], torch.float32, torch.int64) for w in model.parameters())


def test_a_random_model_is_traced_whole_and_copied_with_its_weights():
    model = drawn(8)
    args = model.arguments
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(*args)
        for weight in model.parameters():
            weight += 1
        copied = copy.deepcopy(model)(*args)
        assert all(torch.equal(a, b) for a, b in zip(copied, model(*args), strict=True))
    assert not torch.equal(copied[0], compiled[0])


def test_values_only_where_they_are_asked_for():
    model, args = all_cases()["mlp_64x2_1000"].make("cpu", True)
    assert 0.3 < model(*args).float().std() < 3
    again, same = all_cases()["mlp_64x2_1000"].make("cpu", True)
    assert torch.equal(args[0], same[0]) and torch.equal(model[0].weight, again[0].weight)


def test_records_resume_merge_and_keep_their_runs(tmp_path):
    record = Record.open(tmp_path / "a.json", resume=False)
    record.begin({"command": "first"})
    record.add({"case": "one", "value": 1})
    record.add({"case": "two", "value": 1})
    again = Record.open(tmp_path / "a.json")
    again.begin({"command": "second"})
    again.add({"case": "two", "value": 2})
    assert again.run_of("one") == {"command": "first"} and again.run_of("two") == {"command": "second"}
    other = Record(None, [{"command": "third"}], {"one": {"case": "one", "value": 3, "run": 0}})
    merged = merge([again, other], Record())
    assert {n: e["value"] for n, e in merged.cases.items()} == {"two": 2, "one": 3}
    assert [r["command"] for r in merged.runs] == ["third", "second"] or len(merged.runs) == 2
    assert merged.run_of("one") == {"command": "third"}
    (tmp_path / "b.json").write_text('{"format": 7}')
    with pytest.raises(ValueError, match="format 7"):
        Record.open(tmp_path / "b.json")


CHILD = """
import sys, json, time
print(json.dumps({"hello": 1}), flush=True)
for line in sys.stdin:
    name = line.strip()
    if name == "crash": sys.exit("gone wrong")
    if name == "hang": time.sleep(60)
    print("a compiler talks")
    print(json.dumps({"case": name, "ok": True}), flush=True)
"""


def test_a_case_that_crashes_or_hangs_costs_only_itself():
    worker = Worker([sys.executable, "-c", CHILD])
    try:
        assert worker.ask("a", 10) == {"case": "a", "ok": True}
        assert worker.greeting == {"hello": 1}
        worker.greeting = None
        assert "gone wrong" in worker.ask("crash", 10)["problem"]
        assert worker.ask("hang", 1.0)["problem"] == "no answer in 1 s" and worker.greeting is not None
        assert worker.ask("b", 10) == {"case": "b", "ok": True}
    finally:
        worker.close()


def test_verdicts():
    e = entry("x")
    assert e["own"] == 1.0 and e["best_peer"] == "eager" and e["speedup"] == 3.0 and e["fraction"] == 0.5
    alone = entry("x", milliseconds={"kitsune": {"median": 2.0}, "kitsune, graph": {"median": 4.0}})
    assert alone["own"] == 2.0 and alone["best_peer"] is None and alone["speedup"] is None
    assert "3.00x eager" in told(e) and told({"case": "y", "ok": False, "problem": "boom"}).startswith("FAIL y")


def test_summaries_have_median_and_spread():
    s = summary([float(n) for n in range(1, 12)])
    assert (s["median"], s["min"], s["samples"]) == (6.0, 1.0, 11) and s["p10"] == 2.0 and s["p90"] == 10.0


def test_peers_by_set_or_by_name():
    assert parse("all") == (*PEERS, peers.CHANNELS_LAST) and "max-autotune, graph" not in parse("quick")
    assert parse("eager; compile, graph") == ("eager", "compile, graph")
    with pytest.raises(ValueError, match="no peer 'jit'"):
        parse("jit")


def test_tables_say_what_was_lost():
    failed = {"case": "bad", "group": "conv", "ok": False, "problem": "trap", "goal": 1.0, "measure": "speedup", "run": 0}
    table = "\n".join(group_table({"good": {**entry("good", "conv"), "run": 0}, "bad": failed}))
    assert "| bad | failed: trap" in table and "wrong or failed: bad" in table and "goal reached by 1 of 1" in table
    assert back_to_back({}) == "–"
    replays = {"kitsune, graph": {"median": 2.0}, "eager, graph": {"median": 3.0}, "compile, graph": {"median": 5.0}}
    assert back_to_back({"back_to_back": replays}) == "1.50"
    short = {**entry("s", "gemv", measure="fraction"), "run": 0, "goal": 0.2, "back_to_back": replays}
    assert reached(short) == fraction(short) == short["floor"] / 2.0 and fraction({**short, "measure": "speedup"}) == 0.5
    assert f"| {50 * short['floor']:.0f} % | 0.2 of the floor |" in "\n".join(group_table({"short": short}))
    chains = {n: {**entry(n, "mlp"), "run": 0} for n in ("mlp_16x2_1000", "mlp_16x8_65536", "mlp_32x2_1000")}
    lines = chain_table(chains)
    assert "| width | 2 layers, 1000 rows | 8 layers, 65536 rows |" in lines and "| 32 | 3.00 |  |" in lines
    assert "| 4x5x6 | 3.00 |" in product_table({"product_4x5x6_nt": {**entry("p"), "run": 0}})
    rows = row_table({"rows_sum_8_f32": {**entry("r", measure="fraction"), "run": 0}})
    assert "| 8 | 0.50 |" in rows and "| row length | sum f32 |" in rows
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


NCU = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","spin_kernel(long)","dram__bytes_read.sum","byte","64"
"0","1","spin_kernel(long)","dram__bytes_write.sum","byte","0"
"1","1","main_p0","dram__bytes_read.sum","Mbyte","1.5"
"1","1","main_p0","dram__bytes_write.sum","Kbyte","500"
"2","1","spin_kernel(long)","dram__bytes_read.sum","byte","64"
"3","1","flush","dram__bytes_read.sum","Mbyte","256"
"3","1","flush","dram__bytes_write.sum","Mbyte","0.25"
"4","1","spin_kernel(long)","dram__bytes_read.sum","byte","64"
"5","1","gemm","dram__bytes_read.sum","Mbyte","1,002"
"6","1","relu","dram__bytes_read.sum","Mbyte","1"
"7","1","spin_kernel(long)","dram__bytes_read.sum","byte","64"
"8","1","flush","dram__bytes_read.sum","Mbyte","256"
"""


def test_predictions_and_memory_name_the_farthest():
    times = {"kitsune, graph": {"median": 0.01}}
    entries = {
        "near": {**entry("near", "breadth"), "own": 0.03, "predicted": 0.02},
        "slow": {**entry("slow", "breadth"), "own": 0.5, "predicted": 0.01},
        "short": {**entry("short", "breadth"), "own": 0.05, "predicted": 0.012, "back_to_back": times},
        "unknown": entry("unknown", "breadth"),
    }
    lines = prediction_table(entries)
    assert lines[0].startswith("3 models: 2 predicted within a factor of 1.5 (67 %), 2 within 3 (67 %)")
    assert lines[4] == "| slow | 10.0 | 500.0 | 50.00 |" and lines[6].startswith("| short | 10.0 | 10.0 | 1.00")
    now = {"milliseconds": {"slow": 0.5, "gone": 1.0}, "commit": "c" * 40, "command": "made"}
    assert prediction_table(entries, now)[0].startswith("1 models: 1 predicted within a factor of 1.5 (100 %)")
    assert prediction_table({"unknown": entries["unknown"]})[0].startswith("Not measured")
    held = {"given": 10**6, "kitsune": 3 * 10**6, "compile": 10**6}
    more = {"memory": {**held, "discarded": 5 * 10**5}}
    lines = memory_table({"more": more, "same": {"memory": {**held, "kitsune": 10**6}}, "no peer": {"memory": {}}})
    assert lines[0].startswith("2 models: geometric mean 1.41") and "most 2.00" in lines[0]
    assert "1 models: geometric mean 1.75, most 1.75. The largest" in lines[0]
    assert lines[4] == "| more | 1.0 | 4.0 | 2.0 | 2.00 | 1.75 |" and lines[5].endswith("| 1.00 | – |")


def test_references_are_in_float64_where_there_is_one():
    from bench.measure import exact

    class Single(torch.nn.Module):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise RuntimeError("no kernel for Double")
            return x + 1

    x = torch.randn(3, dtype=torch.bfloat16)
    assert exact(torch.nn.Identity(), (x,)).dtype == torch.float64
    assert torch.equal(exact(Single(), (x,)), x.float() + 1)


def test_models_whose_last_layer_is_zeros_are_drawn():
    from bench.breadth.library.made import Called, case

    def build() -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        torch.nn.init.zeros_(model[1].weight)
        torch.nn.init.zeros_(model[1].bias)
        return model

    made = case("zeros", "torch", build, lambda m: {"0": m.normal(3, 4)}, "f32")
    (model, args), (again, _) = made.make("cpu", True), made.make("cpu", True)
    assert isinstance(model, Called) and model(*args)[0].abs().min() > 0
    assert torch.equal(model(*args)[0], again(*args)[0])
    assert not model.model[1].bias.any(), "vectors may be zeros"


def test_a_copy_without_history_says_its_commit(monkeypatch, tmp_path):
    from bench.timing import commit_of

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("KITSUNE_COMMIT", raising=False)
    assert commit_of() == "unknown"
    monkeypatch.setenv("KITSUNE_COMMIT", "0123abc")
    assert commit_of() == "0123abc"
    (tmp_path / "commit.txt").write_text("4567def\n")
    assert commit_of(tmp_path) == "4567def"


def test_counters_are_summed_between_markers():
    assert segments(NCU) == [2.25e6, 1003e6]
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        segments("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    with pytest.raises(ValueError, match="said nothing"):
        segments("")


def test_channels_last_is_a_peer_where_images_are_convolved(monkeypatch):
    monkeypatch.setattr(peers, "graphed", lambda call: call)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    x = torch.randn(1, 3, 8, 8)
    for case, wanted in ((torch.nn.Conv2d(3, 4, 3), True), (torch.nn.ReLU(), False)):
        made, missing = peers.make_peers(case, (x,), ("eager, graph", peers.CHANNELS_LAST))
        assert (peers.CHANNELS_LAST in made) == wanted and not missing
        if wanted:
            assert made[peers.CHANNELS_LAST]().is_contiguous(memory_format=torch.channels_last)
            assert all(w.is_contiguous() for w in case.parameters()) and peers.CHANNELS_LAST not in PEERS
    last = x.contiguous(memory_format=torch.channels_last)
    assert not peers.make_peers(torch.nn.Conv2d(3, 4, 3), (last,), (peers.CHANNELS_LAST,))[0]
    assert parse("eager; channels last, graph") == ("eager", peers.CHANNELS_LAST) and peers.CHANNELS_LAST in parse("quick")


def test_peers_are_compiled_ahead_by_several_processes(monkeypatch, tmp_path, capsys):
    asked, closed = [], []

    class Told:
        def __init__(self, command):
            self.command = command

        def ask(self, name, limit):
            asked.append((name, limit, self.command[-1]))
            return {"case": name, "ok": name != "gcast_512", "seconds": 1.0}

        def close(self):
            closed.append(self)

    monkeypatch.setattr(worker_, "Worker", Told)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert warm_.warm(tmp_path, select(["nerf*", "dlrm*", "gcast*"]), "all", 2, 7.0, 100.0) == 1
    assert {name for name, *_ in asked} == {"nerf_256k", "dlrm_2048", "gcast_512"} and len(closed) == 2
    assert all(limit == 7.0 and kind == "all" for _, limit, kind in asked)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path.resolve() / "inductor")
    assert "FAIL gcast_512" in capsys.readouterr().out
    assert warm_.warm(tmp_path, select(["nerf*"]), "all", 2, 7.0, 0.0) == 1 and len(asked) == 3


def test_programs_are_built_by_several_processes(monkeypatch, tmp_path, capsys):
    """A case that crashes its process, or takes too long, costs only itself."""
    limits = []

    class Built:
        def __init__(self, command):
            assert command[-2:] == ["build-work", str(tmp_path)]

        def ask(self, name, limit):
            limits.append(limit)
            return {"ok": True, "told": "0.1 s"} if name == "nerf_256k" else {"ok": False, "problem": "no answer in 7 s"}

        def close(self):
            pass

    monkeypatch.setattr(worker_, "Worker", Built)
    assert build(tmp_path, select(["nerf*", "dlrm*"]), 2, 7.0) == 1 and limits == [7.0, 7.0]
    assert sorted(capsys.readouterr().out.splitlines()) == ["dlrm_2048: no answer in 7 s", "nerf_256k: 0.1 s"]
    monkeypatch.setattr("bench.suite._built", lambda folder, case: {"ok": True, "told": folder.name})
    monkeypatch.setattr(sys, "stdin", io.StringIO("nerf_256k\nno_such_case\n"))
    build_work(tmp_path)
    answers = capsys.readouterr().out.splitlines()
    assert answers[0] == "{}" and '"ok": true' in answers[1] and "KeyError" in answers[2]


def test_only_what_is_compiled_is_compiled_ahead(monkeypatch, tmp_path, capsys):
    wanted = []
    monkeypatch.setattr(warm_, "_measure_in_turns", lambda path: None)
    monkeypatch.setattr(peers, "make_peers", lambda model, args, kinds: wanted.append(kinds) or ({}, {}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("stitch\n"))
    case = BenchCase("stitch", "small", lambda device, values: (torch.nn.ReLU(), ()))
    monkeypatch.setattr("bench.cases.all_cases", lambda: {"stitch": case})
    warm_.warm_work(tmp_path, parse("all"))
    assert wanted == [("compile", "max-autotune")] and '"ok": true' in capsys.readouterr().out


def test_rows_that_rounding_decides_are_not_compared() -> None:
    """Two experts with equal scores: either may be chosen, and the row says nothing about the program."""
    from bench.measure import relative_errors
    from bench.models import make
    from bench.modules import MixtureOfExperts

    model, (x,) = make("moe", size="small", dtype=torch.bfloat16)
    assert isinstance(model, MixtureOfExperts)
    model.router.weight[1] = model.router.weight[0]
    undecided = model.undecided(x)
    clear = model.double()(x.double())
    other = clear.clone()
    other[undecided] += 1
    assert 0 < int(undecided.sum()) < len(x)
    assert relative_errors(other, clear)[0] > 0.1
    assert relative_errors(other, clear, ~undecided) == [0.0]
