//! Colibri containers, written by the tests' own writer: read to the bit, run, sharded, refused.
//!
//! The writer's decoder says what every tensor means; the model's door must say the same, piece by
//! piece and expert by expert. Then the engine runs the containers and must give the bytes of the
//! straight-line pass over the same files.

use crate::colibri_writer::{Format, Recipe, Source, Written, decode, encode, random};
use crate::support::data;
use millstream::checkpoint::ModelFiles;
use millstream::convert::{self, Choice, Conversion, Nobody};
use millstream::engine::{Engine, Model, Options, Request};
use millstream::families::{self, ConfigReader};
use millstream_kernels::{GroupSize, ScaleType, WeightFormat, Weights};
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::load::{EXPERT_MATRICES, ExpertShape};
use millstream_stages::parts::{expert_parts, part_shape, resident_parts};
use millstream_stages::pieces::pieces;
use millstream_stages::straight_line::StraightLine;
use millstream_stages::weights::{Staged, WeightSource, aligned_bytes};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Everything that a container can hold.
const FORMATS: [Format; 11] = [
    Format::F32,
    Format::Bf16,
    Format::Int8Row,
    Format::Int4Row,
    Format::Int4Grouped(32),
    Format::Int4Grouped(48),
    Format::Int4Grouped(64),
    Format::Int2Row,
    Format::Int3Group64,
    Format::Mxfp4,
    Format::Fp8Block128,
];

/// A reference model of the tests' data; its dimensions leave rests in most formats.
fn tiny(name: &str) -> Source {
    Source::open(&data().join("tiny").join(name))
}

/// A random model whose dimensions suit every format and allow eight slices; the directory holds
/// its configuration.
fn wide() -> (TempDir, Source) {
    let text = std::fs::read_to_string(data().join("tiny/glm-dsa/config.json")).expect("text");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let sizes = [
        ("hidden_size", 192),
        ("intermediate_size", 256),
        ("moe_intermediate_size", 256),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 8),
        ("kv_lora_rank", 192),
        ("q_lora_rank", 192),
        ("v_head_dim", 32),
        ("num_hidden_layers", 2),
        ("num_nextn_predict_layers", 0),
        ("n_routed_experts", 6),
        ("num_experts_per_tok", 2),
        ("index_topk", 9),
        ("vocab_size", 160),
        ("eos_token_id", 159),
        ("pad_token_id", 159),
    ];
    sizes.iter().for_each(|&(field, size)| config[field] = size.into());
    for list in ["indexer_types", "layer_types", "mlp_layer_types"] {
        config[list].as_array_mut().expect("a list").truncate(2);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let text = config.to_string();
    std::fs::write(directory.path().join("config.json"), &text).expect("config.json");
    let config = ConfigReader::parse("config.json", text.as_bytes()).expect("an object");
    let blueprint = families::blueprint(&config, &|_| true).expect("a model");
    let spec = &blueprint.spec;
    let mut parts = resident_parts(spec);
    for (index, layer) in spec.layers.iter().enumerate() {
        let experts = layer.moe().map_or(0, |moe| moe.experts);
        let expert = |e| expert_parts(ExpertId(e as u32)).map(|part| (LayerId(index as u32), part));
        parts.extend((0..experts).flat_map(expert).map(|(layer, part)| (Some(layer), part)));
    }
    let mut counter = 0;
    let tensors = parts.into_iter().map(|(layer, part)| {
        let [rows, cols] = part_shape(spec, layer, part).expect("a part of the model");
        let (middle, spread) =
            if rows == 1 { (0.9, 0.2) } else { (0.0, 3.0 / (cols as f32).sqrt()) };
        let mut value = || {
            counter += 1;
            middle + spread * ((random(counter) >> 40) as f32 / (1 << 24) as f32 - 0.5)
        };
        let values = (0..rows * cols).map(|_| value()).collect();
        let shape = if rows == 1 { vec![cols] } else { vec![rows, cols] };
        ((blueprint.tensor_name)(layer, part), (shape, values))
    });
    let source = Source { directory: directory.path().to_path_buf(), tensors: tensors.collect() };
    (directory, source)
}

fn written(recipe: &Recipe, source: &Source) -> (TempDir, Written) {
    let directory = tempfile::tempdir().expect("a directory");
    let written = recipe.write(source, directory.path());
    (directory, written)
}

fn open(directory: &Path) -> ModelFiles {
    ModelFiles::open(directory).expect("the container opens")
}

/// Why a container is refused.
fn refusal(directory: &Path) -> String {
    ModelFiles::open(directory).expect_err("the container is refused").to_string()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Some tokens through the engine, with fewer slots than experts: all tokens but the last, and the
/// bits of all logits.
fn generate(model: Model) -> (Vec<u32>, Vec<u32>) {
    let options = Options {
        threads: Some(2),
        experts_per_layer: Some(3),
        prefill_chunk: 5,
        logits_rows_max: 64,
        context: Some(64),
        ..Options::default()
    };
    let engine = Engine::start(model, &options).expect("the engine starts");
    let mut tokens: Vec<u32> = (0..12).map(|i| (i * i * 7 + i * 13 + 5) % 150).collect();
    let request = Request { keep_logits: true, ..Request::greedy(tokens.clone(), 3) };
    let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(())).expect("it runs");
    assert_eq!(answer.answer_ids.len(), 3, "tokens come");
    tokens.extend(&answer.answer_ids[..2]);
    (tokens, bits(&answer.logits.expect("kept")))
}

/// Runs a container; the bits of all logits, which are those of the straight-line pass over it.
fn run(open: &dyn Fn() -> ModelFiles) -> Vec<u32> {
    let (tokens, found) = generate(Model::of(open()));
    let files = open();
    let mut pass = StraightLine::<f32>::new(&files.blueprint.spec, &files);
    let steps = pass.run(&tokens).expect("it runs");
    assert!(steps.iter().flat_map(|step| &step.logits).all(|logit| logit.is_finite()));
    let expected: Vec<u32> = steps.iter().flat_map(|step| bits(&step.logits)).collect();
    assert!(found == expected, "the engine gives the bytes of the straight-line pass");
    found
}

/// Writes a container and runs it.
fn run_written(recipe: &Recipe, source: &Source) -> Vec<u32> {
    let (directory, _) = written(recipe, source);
    run(&|| open(directory.path()))
}

fn kernel_format(format: Format, cols: usize) -> WeightFormat {
    match format {
        Format::F32 => WeightFormat::F32,
        Format::Bf16 => WeightFormat::Bf16,
        Format::Int8Row => WeightFormat::Int8Row(ScaleType::F32),
        Format::Int4Grouped(group) if group < cols => {
            WeightFormat::Int4Group(GroupSize::new(group).expect("a size"), ScaleType::F32)
        }
        Format::Int4Row | Format::Int4Grouped(_) => WeightFormat::Int4Row(ScaleType::F32),
        Format::Int2Row => WeightFormat::Int2Row(ScaleType::F32),
        Format::Int3Group64 => WeightFormat::Int3Group64(ScaleType::F32),
        Format::Mxfp4 => WeightFormat::Mxfp4,
        Format::Fp8Block128 => WeightFormat::Fp8Block128(ScaleType::F32),
    }
}

/// Rows of a block of a tensor against the decoder's values; zeros may differ in their sign.
fn check_block(weights: &Weights<'_>, name: &str, written: &Written, cols: usize, at: [usize; 2]) {
    let (format, expected) = &written[name];
    assert_eq!(weights.format(), kernel_format(*format, cols), "{name}");
    let mut found = vec![0.0; weights.cols()];
    let bits = |value: &f32| (value + 0.0).to_bits();
    for row in 0..weights.rows() {
        weights.decode_row(row, &mut found);
        let expected = &expected[(at[0] + row) * cols + at[1]..][..weights.cols()];
        let same = found.iter().map(bits).eq(expected.iter().map(bits));
        assert!(same, "{name}: row {row} of the block at {at:?}:\n{found:?}\n{expected:?}");
    }
}

/// Every tensor that the model uses, through its door.
fn check_tensors(files: &ModelFiles, written: &Written) {
    let spec = &files.blueprint.spec;
    for (layer, part) in resident_parts(spec) {
        let name = (files.blueprint.tensor_name)(layer, part);
        let [_, cols] = part_shape(spec, layer, part).expect("a part of the model");
        let format = files.format(layer, part);
        for block in pieces(spec, layer, part) {
            let bytes = format.matrix_bytes(block.rows.len(), block.cols.len());
            let mut lines = aligned_bytes(bytes);
            let out = &mut bytemuck::cast_slice_mut(&mut lines)[..bytes];
            files.read(layer, part, &block, out).expect("it is read");
            let weights = Weights::new(format, block.rows.len(), block.cols.len(), out);
            check_block(&weights, &name, written, cols, [block.rows.start, block.cols.start]);
        }
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        let Some(moe) = layer.moe() else { continue };
        let layer = LayerId(index as u32);
        let shape = ExpertShape::new(spec.hidden, moe, spec.slices, files.expert_formats(layer));
        for expert in (0..moe.experts as u32).map(ExpertId) {
            check_expert(files, written, layer, expert, &shape);
        }
    }
}

fn check_expert(
    files: &ModelFiles,
    written: &Written,
    layer: LayerId,
    expert: ExpertId,
    shape: &ExpertShape,
) {
    let (mut staging, mut places) = (vec![], vec![]);
    for extent in files.expert_extents(layer, expert) {
        let mut bytes = vec![0; extent.bytes];
        let file = &files.checkpoint.files()[extent.file.index()];
        file.read_exact_at(&mut bytes, extent.offset).expect("the extent is in the file");
        places.push(staging.len()..staging.len() + bytes.len());
        staging.extend(bytes);
    }
    let width = shape.slice_width();
    for slice in 0..shape.slices {
        let mut lines = aligned_bytes(shape.slice_bytes());
        let out = &mut bytemuck::cast_slice_mut(&mut lines)[..shape.slice_bytes()];
        files.unpack_slice(layer, expert, shape, slice, Staged::new(&staging, &places), out);
        let columns = [shape.hidden, shape.hidden, shape.intermediate];
        let starts = [[slice * width, 0], [slice * width, 0], [0, slice * width]];
        for (which, part) in EXPERT_MATRICES.into_iter().zip(expert_parts(expert)) {
            let name = (files.blueprint.tensor_name)(Some(layer), part);
            let (cols, at) = (columns[which as usize], starts[which as usize]);
            check_block(&shape.weights(out, which), &name, written, cols, at);
        }
    }
}

#[test]
fn the_writer_keeps_to_the_layout() {
    let bytes = |format, values: &[f32]| {
        let stored = encode(format, values, values.len());
        (stored.weights, stored.scales)
    };
    let one = 1f32.to_le_bytes().to_vec();
    assert_eq!(bytes(Format::Int8Row, &[-127.0, 2.5, 3.5]), (vec![0x81, 2, 4], one.clone()));
    assert_eq!(bytes(Format::Int4Row, &[-7.0, 7.0, 3.0]), (vec![0xf1, 0x8b], one.clone()));
    assert_eq!(bytes(Format::Int2Row, &[-1.0, 0.0, 1.0, 1.0, -1.0]), (vec![249, 169], one.clone()));
    let (weights, scales) = bytes(Format::Int3Group64, &[3.0, -3.0, 1.0]);
    assert_eq!((weights.len(), scales), (24, one));
    assert_eq!(weights[..2], [0b00_01_01_11, 0]);
    assert_eq!(weights[16..18], [0b1111_1101, 0xff]);
    let values: Vec<f32> = (0..32).map(|i| [6.0, -0.5, 1.0, -4.0][i % 4]).collect();
    assert_eq!(bytes(Format::Mxfp4, &values).0[..2], [0x97, 0xe2]);
    assert_eq!(bytes(Format::Mxfp4, &values).1, [127]);
    assert_eq!(bytes(Format::Fp8Block128, &[448.0, -1.0, 1.0 / 512.0]).0, [0x7e, 0xb8, 1]);
}

#[test]
fn the_writers_error_is_that_of_its_bits() {
    let values: Vec<f32> = (0..192 * 100).map(|i| (random(i) >> 40) as f32 - 8e6).collect();
    let bounds = [0.0, 0.01, 0.01, 0.1, 0.1, 0.1, 0.1, 0.6, 0.2, 0.2, 0.04];
    for (format, bound) in FORMATS.into_iter().zip(bounds) {
        let stored = encode(format, &values, 192);
        let found = decode(format, &stored.weights, &stored.scales, 100, 192);
        let square = |(a, b): (&f32, &f32)| f64::from(a - b) * f64::from(a - b);
        let error: f64 = values.iter().zip(&found).map(square).sum();
        let power: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let relative = (error / power).sqrt();
        assert!(relative <= bound && relative >= bound / 5.0, "{format:?}: {relative}");
    }
}

#[test]
fn tensors_of_every_format_are_read_as_the_decoder_reads_them() {
    let (_home, wide) = wide();
    let check = |recipe: &Recipe, source: &Source| {
        let (directory, written) = written(recipe, source);
        let files = open(directory.path());
        check_tensors(&files, &written);
        files.blueprint.spec.slices
    };
    let everywhere =
        |format| Recipe { dense: format, io: format, noise: true, ..Recipe::of(format) };
    for format in FORMATS {
        let slices = check(&everywhere(format), &wide);
        // Slices end where groups end.
        let expected = match format {
            Format::Int4Grouped(48) => 1,
            Format::Fp8Block128 => 2,
            Format::Int3Group64 | Format::Int4Grouped(64) => 4,
            _ => 8,
        };
        assert_eq!(slices, expected, "{format:?}");
    }
    // Rests everywhere: half bytes, half groups, half blocks.
    let [g32, row] = [Format::Int4Grouped(32), Format::Int4Row];
    let rests = [
        ("glm-dsa", vec![Format::Int8Row, row, Format::Int2Row]),
        ("glm-dsa-fp8", vec![Format::Fp8Block128, Format::Int3Group64, g32, Format::Int2Row]),
        ("glm-dsa-grp-tied-f32", vec![Format::Int3Group64, g32, row, Format::Fp8Block128]),
    ];
    for (name, formats) in rests {
        let source = tiny(name);
        for format in formats {
            // Where sizes don't tell, as at 56 columns in groups of 32 or 48, stamps do.
            check(&Recipe { stamp: Some("int4-g32"), ..everywhere(format) }, &source);
        }
    }
}

#[test]
fn containers_of_every_expert_format_run() {
    let (_home, wide) = wide();
    for format in FORMATS {
        run_written(&Recipe::of(format), &wide);
    }
    let mixed = [Format::Int4Grouped(64), Format::Int3Group64, Format::Int8Row];
    let dense = Format::Int4Grouped(64);
    run_written(&Recipe { experts: mixed, dense, ..Recipe::of(dense) }, &wide);
    let grouped = Format::Int4Grouped(32);
    let source = tiny("glm-dsa-grp-tied-f32");
    run_written(&Recipe { dense: grouped, io: grouped, ..Recipe::of(grouped) }, &source);
    let experts = [grouped, grouped, Format::Int4Row];
    run_written(&Recipe { experts, ..Recipe::of(grouped) }, &tiny("glm-dsa"));
    run_written(&Recipe::of(Format::Fp8Block128), &tiny("glm-dsa-fp8"));
}

#[test]
fn an_experts_weights_are_one_read_and_its_scales_another() {
    let (_home, wide) = wide();
    let (directory, _) = written(&Recipe::of(Format::Int4Grouped(64)), &wide);
    let files = open(directory.path());
    let extents = files.expert_extents(LayerId(1), ExpertId(2));
    let bytes: Vec<usize> = extents.iter().map(|extent| extent.bytes).collect();
    // Scales come first in a file.
    assert_eq!(bytes, [4 * (2 * 256 * 3 + 192 * 4), 3 * 192 * 128]);
}

#[test]
fn shards_and_sidecars_change_no_byte() {
    let source = tiny("glm-dsa");
    let recipe = Recipe::of(Format::Int4Row);
    let expected = run_written(&recipe, &source);
    for shards in [2, 7] {
        let found = run_written(&Recipe { shards, ..recipe.clone() }, &source);
        assert!(found == expected, "{shards} shards");
    }
    let sidecar = tempfile::tempdir().expect("a directory");
    let split = Recipe { shards: 5, sidecar: Some(sidecar.path().into()), ..recipe };
    let (directory, _) = written(&split, &source);
    let extra = [sidecar.path().to_path_buf()];
    let open = || ModelFiles::open_with(directory.path(), &extra).expect("it opens with both");
    assert!(run(&open) == expected, "a sidecar directory");

    let said = refusal(directory.path());
    for shard in ["out-00000", "out-00002", "out-00004", "missing out-00001, out-00003"] {
        assert!(said.contains(shard), "{shard} in: {said}");
    }
    let inspect = |variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.arg("inspect").arg(directory.path()).env(variable, sidecar.path());
        command.output().expect("the command runs").status.success()
    };
    assert!(inspect("MILLSTREAM_MODEL_DIRS"), "the variable names the sidecar");
    assert!(!inspect("ANOTHER_VARIABLE"), "nothing names it");
}

#[test]
fn stamps_decide_only_where_sizes_do_not() {
    let source = tiny("glm-dsa");
    let grouped =
        |columns| Recipe { dense: Format::Int4Grouped(columns), ..Recipe::of(Format::Int8Row) };
    let stamped = |name, recipe| Recipe { stamp: Some(name), ..recipe };
    let clear = tiny("glm-dsa-grp-tied-f32");
    let sizes_do = run_written(&grouped(32), &clear);
    assert!(run_written(&stamped("int4-grouped", grouped(32)), &clear) == sizes_do);

    // 96 columns are two groups of 48, or 64 and 32.
    let (directory, _) = written(&grouped(64), &source);
    let said = refusal(directory.path());
    assert!(said.contains("int4-g48") && said.contains("int4-g64"), "{said}");
    for columns in [48, 64] {
        let name = if columns == 48 { "int4-g48" } else { "int4-g64" };
        let (directory, written) = written(&stamped(name, grouped(columns)), &source);
        check_tensors(&open(directory.path()), &written);
        run(&|| open(directory.path()));
    }
    // Or 64 and 32 in 24 bytes each.
    let planes = Recipe { dense: Format::Int3Group64, ..Recipe::of(Format::Int8Row) };
    let said = refusal(written(&planes, &source).0.path());
    assert!(said.contains("int3-g64") && said.contains("int4-g64"), "{said}");
    let (directory, values) = written(&stamped("int4-grouped", planes), &source);
    check_tensors(&open(directory.path()), &values);

    // Routed experts have no stamps.
    let experts = stamped("int4-g64", Recipe::of(Format::Int4Grouped(64)));
    let said = refusal(written(&experts, &source).0.path());
    assert!(said.contains(".mlp.experts.") && said.contains("int4-g48"), "{said}");
}

#[test]
fn without_an_indexer_every_position_is_attended() {
    let mut source = tiny("glm-dsa");
    let (directory, _) = written(&Recipe::of(Format::Int8Row), &source);
    let open = || open(directory.path());
    let indexed = run(&open);
    std::fs::remove_file(directory.path().join("out-idx-00000.safetensors")).expect("removed");
    // As few positions as here are all selected.
    assert!(run(&open) == indexed, "no indexer, the same bytes");
    let gone = "model.layers.1.self_attn.indexer.wk.weight";
    source.tensors.remove(gone).expect("the model has it");
    let said = refusal(written(&Recipe::of(Format::Int8Row), &source).0.path());
    assert!(said.contains(gone), "{said}");
}

#[test]
fn a_pack_that_keeps_a_containers_formats_gives_its_bytes() {
    let keep = convert::Options {
        experts: Choice::Keep,
        dense: Choice::Keep,
        io: Choice::Keep,
        mtp: Choice::Keep,
        ..convert::Options::default()
    };
    let (_home, wide) = wide();
    let check = |recipe: &Recipe, source: &Source| {
        let (container, _) = written(recipe, source);
        let place = tempfile::tempdir().expect("a directory");
        let pack = place.path().join("pack");
        let conversion = Conversion::prepare(container.path(), &pack, &keep).expect("planned");
        conversion.run(&Nobody).expect("converted");
        let expected = generate(Model::open(container.path()).expect("the container opens"));
        assert!(generate(Model::open(&pack).expect("the pack opens")) == expected, "{recipe:?}");
    };
    for format in FORMATS {
        check(&Recipe { dense: format, ..Recipe::of(format) }, &wide);
    }
    let mixed = [Format::Int4Row, Format::Int2Row, Format::Int8Row];
    check(&Recipe { experts: mixed, shards: 3, ..Recipe::of(mixed[0]) }, &tiny("glm-dsa"));
}
