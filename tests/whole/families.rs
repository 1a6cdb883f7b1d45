//! Every family in the determinism matrix: from its own files and from packs, streamed with few
//! slots, on several nodes, alone and in company, one result.
//!
//! What a family's numbers must be is `straight_line.rs`'s and `engine.rs`'s business; here the
//! straight-line pass over the same files says what every way of running must give, to the bit.

use crate::convert::{convert, keep, options};
use crate::support::{Reference, data, for_each_tiny_model};
use millstream::engine::{Engine, Model, Options, Request};
use millstream_kernels::Isa;
use millstream_stages::prefetch::Lookahead;
use millstream_stages::straight_line::StraightLine;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// A way of running: threads, policy, nodes, slots a layer, rows of a chunk, lookahead, waves,
/// company.
type Way = (usize, &'static str, usize, usize, usize, Lookahead, usize, bool);

/// The minimum of slots in most of them; each value of an axis at least once.
const WAYS: [Way; 8] = [
    (1, "compact", 1, 1, 96, Lookahead::Off, 1, false),
    (2, "striped", 2, 1, 8, Lookahead::Auto, 1, false),
    (3, "striped", 3, 1, 1, Lookahead::Repeat, 1, true),
    (2, "interleaved", 2, 2, 3, Lookahead::GateTwice, 2, true),
    (5, "spread", 4, 1, 96, Lookahead::Auto, 2, true),
    (2, "single", 3, 3, 8, Lookahead::Off, 2, false),
    (4, "compact", 4, 1, 3, Lookahead::GateTwice, 1, true),
    (2, "striped", 1, usize::MAX, 96, Lookahead::Auto, 1, true),
];

/// Bits of the logits of all positions, the straight-line way.
fn expected(directory: &Path, tokens: &[u32]) -> Vec<u32> {
    let model = Model::open(directory).expect("the model opens");
    let steps = StraightLine::<f32>::new(&model.spec, &*model.source).run(tokens).expect("it runs");
    steps.iter().flat_map(|step| &step.logits).map(|logit| logit.to_bits()).collect()
}

/// The same from the engine, one way of running it.
fn found(directory: &Path, tokens: &[u32], isa: Isa, way: Way) -> Vec<u32> {
    let (threads, policy, nodes, slots, prefill_chunk, lookahead, waves_max, company) = way;
    let machine = format!("pack:1 numa:{nodes} core:2 pu:1");
    let mut topology: millstream_topology::TopologyArg = machine.parse().expect("a machine");
    topology.policy = millstream_topology::PolicyName::find(policy).expect("a policy");
    let options = Options {
        topology,
        threads: Some(threads),
        experts_per_layer: Some(slots),
        isa: Some(isa),
        prefill_chunk,
        lookahead,
        waves_max,
        sequences_max: 3,
        logits_rows_max: 256,
        context: Some(256),
        ..Options::default()
    };
    let model = Model::open(directory).expect("the model opens");
    let engine = Engine::start(model, &options).expect("the engine starts");
    let own = Request { keep_logits: true, ..Request::greedy(tokens.to_vec(), 0) };
    let mut requests = vec![own];
    if company {
        let others = [&tokens[3..20], &tokens[7..8]];
        requests.extend(others.map(|prompt| Request::greedy(prompt.to_vec(), 12)));
    }
    let answers = engine.generate_all(&requests).expect("the requests can be met");
    let first = answers.into_iter().next().expect("asked for").expect("no read fails");
    first.logits.expect("kept").into_iter().map(f32::to_bits).collect()
}

/// Holds a directory to one result, however it is run. Instruction sets take turns over the ways.
fn one_result(directory: &Path, tokens: &[u32], what: &str, turn: usize) {
    let expected = expected(directory, tokens);
    let isas = Isa::available();
    for (index, way) in WAYS.into_iter().enumerate() {
        let isa = isas[(index + turn) % isas.len()];
        let found = found(directory, tokens, isa, way);
        assert!(found == expected, "{what}: {way:?} with {isa} changes the bytes");
    }
}

#[test]
fn every_family_gives_one_result_from_files_and_packs_with_the_least_slots() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    for_each_tiny_model(|name| {
        let reference = Reference::open(&data().join("tiny").join(name));
        // More than one block of positions, and more than any window.
        let case = reference.cases().into_iter().find(|case| case.prompt.len() >= 100);
        let case = case.expect("a reference has a long prompt");
        let tokens: Vec<u32> = case.prompt.iter().chain(&case.greedy).copied().take(110).collect();
        one_result(&reference.directory, &tokens, name, 0);
        let rounded = options(&[("experts", "int4-g32"), ("dense", "int8"), ("io", "int8")]);
        for (turn, (kind, options)) in [("kept", keep()), ("rounded", rounded)].iter().enumerate() {
            let place = rooms.path().join(format!("{name}-{kind}"));
            convert(&reference.directory, &place, options);
            one_result(&place, &tokens, &format!("{name}, {kind}"), turn + 1);
        }
        println!("{name}: {} ways each, one result", WAYS.len());
    });
}

/// A tensor to be written: its shape and bytes.
type Written = (Vec<usize>, Vec<u8>);

/// Writes a model again with the experts of every layer in two stacks, gate and up side by side, as
/// transformers 5 holds them.
fn stacked(from: &Path, to: &Path) {
    let mut tensors: BTreeMap<String, Written> = BTreeMap::new();
    let mut stacks: BTreeMap<String, BTreeMap<(usize, usize), Written>> = BTreeMap::new();
    for entry in std::fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "safetensors")
            || path.ends_with("ref.safetensors")
        {
            continue;
        }
        let bytes = std::fs::read(&path).expect("a shard");
        for (name, view) in SafeTensors::deserialize(&bytes).expect("opens").tensors() {
            assert_eq!(view.dtype(), Dtype::BF16, "{name}");
            let written = (view.shape().to_vec(), view.data().to_vec());
            let Some((prefix, rest)) = name.split_once(".mlp.experts.") else {
                tensors.insert(name, written);
                continue;
            };
            let (expert, matrix) = rest.split_once('.').expect("an expert's matrix");
            let order = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"];
            let order = order.iter().position(|name| *name == matrix).expect("one of three");
            let stack = if order < 2 { "gate_up_proj" } else { "down_proj" };
            let stack = stacks.entry(format!("{prefix}.mlp.experts.{stack}")).or_default();
            stack.insert((expert.parse().expect("a number"), order), written);
        }
    }
    for (name, parts) in stacks {
        let matrices = if name.ends_with("gate_up_proj") { 2 } else { 1 };
        let shape = &parts.values().next().expect("experts").0;
        let shape = vec![parts.len() / matrices, matrices * shape[0], shape[1]];
        let bytes = parts.into_values().flat_map(|(_, bytes)| bytes).collect();
        tensors.insert(name, (shape, bytes));
    }
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("a view"))
    });
    let file = safetensors::serialize(views, None).expect("serialised");
    std::fs::write(to.join("model.safetensors"), file).expect("written");
    std::fs::copy(from.join("config.json"), to.join("config.json")).expect("copied");
}

#[test]
fn stacked_experts_give_what_experts_of_their_own_give() {
    let from = data().join("tiny/qwen3-moe");
    let room = tempfile::tempdir().expect("a temporary directory");
    stacked(&from, room.path());
    let tokens: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 500).collect();
    let expected = expected(&from, &tokens);
    for way in [WAYS[1], WAYS[7]] {
        let found = found(room.path(), &tokens, Isa::Scalar, way);
        assert!(found == expected, "{way:?}: stacks change the bytes");
    }
}
