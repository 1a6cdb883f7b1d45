//! The determinism matrix: everything that may change speed and must not change a byte.
//!
//! A run is one value on each axis; its result is a hash over the logits of every position and the
//! tokens. The pairwise form (a test) takes every pair of values of two axes at least once; the
//! full form (`cargo run --release --example determinism`) takes every combination.

#[path = "shapes.rs"]
mod shapes;

use millstream::engine::{Engine, Model, OpenedReader, Options, Request};
use millstream_kernels::{Isa, WeightFormat};
use millstream_stages::prefetch::Lookahead;
use millstream_stages::prefetch::eviction::{EVICTIONS, EvictionPolicy};
use millstream_stages::simulation::{MemoryReader, RandomFormats, RandomModel};
use millstream_stages::spec::ModelSpec;
use millstream_stages::straight_line::StraightLine;
use shapes::{EXPERTS, TOP_K};
use std::sync::Arc;

/// Tokens of the first sequence's prompt: more than one KV block.
const PROMPT: usize = 70;
/// Tokens of its answer.
const ANSWER: usize = 8;

/// Names of the axes, in the order of [`Run`].
pub const AXES: [&str; 8] =
    ["threads", "plan", "slots", "isa", "prefill chunk", "company", "lookahead", "waves"];

/// One value on each axis, as indices into [`axis_lengths`].
pub type Run = [usize; AXES.len()];

const THREADS: [usize; 4] = [1, 2, 3, 5];
const PLANS: [(&str, usize); 11] = [
    ("compact", 1),
    ("compact", 2),
    ("compact", 3),
    ("compact", 4),
    ("striped", 1),
    ("striped", 2),
    ("striped", 3),
    ("striped", 4),
    ("interleaved", 2),
    ("spread", 3),
    ("single", 4),
];
const SLOTS: [usize; 4] = [1, 2, TOP_K - 1, EXPERTS];
const CHUNKS: [usize; 4] = [1, 3, 8, 96];
/// Of every lookahead there is; `gate2` asks as `gate` does and more.
const LOOKAHEADS: [Lookahead; 4] =
    [Lookahead::Off, Lookahead::Repeat, Lookahead::Auto, Lookahead::GateTwice];

/// How many values each axis has on this machine.
pub fn axis_lengths() -> Run {
    let isas = Isa::available().len();
    [THREADS.len(), PLANS.len(), SLOTS.len(), isas, CHUNKS.len(), 2, LOOKAHEADS.len(), 2]
}

/// A test model: its name, its layers, its formats.
pub type Line = (&'static str, fn(&RandomFormats) -> ModelSpec, RandomFormats);

/// The test models: latent attention in every format of the table and in a mixture of them;
/// alternating attention, and no experts at all, in some.
pub fn models() -> Vec<Line> {
    let of = |name: &str| name.parse::<WeightFormat>().expect("a format");
    let all = |name: &'static str| (name, shapes::latent as _, RandomFormats::from(of(name)));
    let mixed = RandomFormats {
        resident: of("int8-row"),
        experts: ["int4-g64", "int3-g64", "int4-g64:f16"].map(of),
    };
    let others = ["f16", "fp8-e4m3-b128", "int4-row", "int4-g32:f16", "int2-row", "int3-g64"];
    let mut models: Vec<Line> = vec![
        all("f32"),
        all("bf16"),
        all("int8-row"),
        ("mixed", shapes::latent, mixed),
        ("alternating f32", shapes::alternating, of("f32").into()),
        ("alternating mixed", shapes::alternating, mixed),
        ("dense int8-row", shapes::dense, of("int8-row").into()),
    ];
    models.extend(others.map(all));
    models.extend([all("int4-g64"), all("int4-g128"), all("mxfp4"), all("fp8-e4m3-b128:ue8m0")]);
    // What GGUF files have, each format once.
    for (name, resident, experts) in [
        ("ggml k", "int8-g32:f16", ["q4_k", "q2_k", "q6_k"]),
        ("ggml k and others", "q5_k", ["iq4_xs", "q3_k", "q5_1"]),
        ("ggml short", "q5_0", ["q4_1", "iq4_nl", "q5_k"]),
    ] {
        let formats = RandomFormats { resident: of(resident), experts: experts.map(of) };
        models.push((name, shapes::latent, formats));
    }
    models
}

/// A line of [`models`], drawn.
pub fn model(&(_, shape, formats): &Line) -> Arc<RandomModel> {
    Arc::new(RandomModel::new(shape(&formats), 8, formats))
}

fn prompt(seed: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| ((i * i * 7 + i * 13 + seed * 31) % 75) as u32).collect()
}

/// Which eviction policy a run has: it takes turns over the matrix instead of widening it.
fn eviction(run: &Run) -> EvictionPolicy {
    EVICTIONS[run.iter().sum::<usize>() % EVICTIONS.len()]
}

/// A run in words.
pub fn describe(run: &Run) -> String {
    let (policy, nodes) = PLANS[run[1]];
    format!(
        "threads {}, {policy} on {nodes} nodes, slots {}, {}, chunks of {}, {}, lookahead {:?}, \
         waves {}, eviction {:?}",
        THREADS[run[0]],
        SLOTS[run[2]],
        Isa::available()[run[3]],
        CHUNKS[run[4]],
        ["alone", "among three others"][run[5]],
        LOOKAHEADS[run[6]],
        run[7] + 1,
        eviction(run),
    )
}

/// The hash that every run must have: what the straight-line pass gives.
pub fn expected_hash(model: &RandomModel) -> u64 {
    let mut pass = StraightLine::<f32>::new(&model.spec, model);
    let mut steps = pass.run(&prompt(0, PROMPT)).expect("a model in memory is read");
    let mut answer = vec![];
    loop {
        let logits = &steps.last().expect("a prompt").logits;
        let best = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
        answer.push((0..logits.len()).fold(0, best) as u32);
        if answer.len() == ANSWER {
            break;
        }
        steps.push(pass.step(*answer.last().expect("pushed above")).expect("it runs"));
    }
    hash(steps.iter().flat_map(|step| &step.logits).map(|logit| logit.to_bits()).chain(answer))
}

/// FNV-1a over words.
fn hash(words: impl Iterator<Item = u32>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        (hash ^ u64::from(word)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Runs one cell of the matrix; the hash of all logits and tokens of the first sequence.
pub fn hash_of(model: &Arc<RandomModel>, run: &Run) -> u64 {
    let (policy, nodes) = PLANS[run[1]];
    let machine = format!("pack:1 numa:{nodes} core:2 pu:1");
    let mut topology: millstream_topology::TopologyArg = machine.parse().expect("a machine");
    topology.policy = millstream_topology::PolicyName::find(policy).expect("a policy");
    let options = Options {
        topology,
        threads: Some(THREADS[run[0]]),
        experts_per_layer: Some(SLOTS[run[2]]),
        isa: Some(Isa::available()[run[3]]),
        prefill_chunk: CHUNKS[run[4]],
        lookahead: LOOKAHEADS[run[6]],
        eviction: eviction(run),
        sequences_max: 4,
        waves_max: run[7] + 1,
        logits_rows_max: 96,
        ..Options::default()
    };
    let source = model.clone();
    let engine_model = Model {
        spec: model.spec.clone(),
        source: model.clone(),
        reader: Box::new(move |_| {
            let reader = Box::new(MemoryReader::new(source.clone()));
            Ok(OpenedReader {
                reader,
                words: String::new(),
                warnings: vec![],
                is_light: false,
                drive_node: None,
            })
        }),
        resident_bytes: 0,
        stop_ids: vec![],
        warnings: vec![],
    };
    let engine = Engine::start(engine_model, &options).expect("the engine starts");
    let request = |seed: usize, tokens: usize, answer: usize| Request {
        keep_logits: seed == 0,
        ..Request::greedy(prompt(seed, tokens), answer)
    };
    let mut requests = vec![request(0, PROMPT, ANSWER)];
    if run[5] == 1 {
        requests.extend([request(1, 9, 20), request(2, 33, 3), request(3, 1, 30)]);
    }
    // The first sequence isn't the first in line when it has company.
    let half = requests.len() / 2;
    requests.rotate_left(half);
    let first = (requests.len() - half) % requests.len();
    let mut answers = engine.generate_all(&requests).expect("the requests can be met");
    let answer = answers.swap_remove(first).expect("no read fails");
    let logits = answer.logits.expect("kept");
    assert_eq!(logits.len(), (PROMPT + ANSWER - 1) * model.spec.vocabulary);
    hash(logits.iter().map(|logit| logit.to_bits()).chain(answer.answer_ids))
}
