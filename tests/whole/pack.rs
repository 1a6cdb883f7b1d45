//! Packs: they run, they give the model's own bytes of logits, and no damage goes unseen.

use crate::convert::{contents, convert, deep, keep, options, tiny};
use crate::support::{Reference, data, for_each_tiny_model};
use millstream::checkpoint::ModelFiles;
use millstream::checkpoint::pack::layout::file_layouts;
use millstream::checkpoint::pack::manifest::Manifest;
use millstream::checkpoint::pack::{Formats, PackChecks, PackFiles, slices_by};
use millstream::convert::Options;
use millstream::engine::{Engine, Model, Options as EngineOptions, Request};
use millstream::families::{ConfigReader, blueprint};
use millstream_kernels::Weights;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::load::{EXPERT_MATRICES, ExpertShape};
use millstream_stages::parts::{part_shape, resident_parts};
use millstream_stages::pieces::pieces;
use millstream_stages::spec::ModelSpec;
use millstream_stages::straight_line::StraightLine;
use millstream_stages::weights::{Part, Rectangle, Staged, WeightSource, aligned_bytes};
use safetensors::{Dtype, tensor::TensorView};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MODELS: [&str; 3] = ["glm-dsa", "glm-dsa-grp-tied-f32", "glm-dsa-fp8"];

fn model(name: &str) -> PathBuf {
    data().join("tiny").join(name)
}

fn open(directory: &Path) -> PackFiles {
    PackFiles::open(directory, PackChecks { resident: true, experts: true }).expect("it opens")
}

/// Logits of all positions by the pipeline.
fn engine_logits(directory: &Path, tokens: &[u32]) -> Vec<f32> {
    let options =
        EngineOptions { logits_rows_max: 1024, context: Some(640), ..EngineOptions::default() };
    let model = Model::open(directory).expect("the model opens");
    let engine = Engine::start(model, &options).expect("the engine starts");
    let request = Request { keep_logits: true, ..Request::greedy(tokens.to_vec(), 0) };
    let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(())).expect("it runs");
    answer.logits.expect("kept")
}

/// Logits of all positions by the straight-line pass.
fn straight_logits(spec: &ModelSpec, source: &dyn WeightSource, tokens: &[u32]) -> Vec<f32> {
    let steps = StraightLine::<f32>::new(spec, source).run(tokens).expect("it runs");
    steps.into_iter().flat_map(|step| step.logits).collect()
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn kept_formats_give_the_snapshots_own_logits() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    for_each_tiny_model(|name| {
        let reference = Reference::open(&model(name));
        let case = &reference.cases()[0];
        let source = reference.model_for(case);
        let tokens: Vec<u32> = case.prompt.iter().chain(&case.greedy).copied().collect();
        let place = rooms.path().join(name);
        convert(source.path(), &place, &keep());
        let (files, pack) = (ModelFiles::open(source.path()).expect("opens"), open(&place));
        assert_eq!(pack.blueprint.spec, files.blueprint.spec, "{name}");
        assert_eq!(pack.blueprint.tokens, files.blueprint.tokens, "{name}");
        let expected = engine_logits(source.path(), &tokens);
        assert!(same(&engine_logits(&place, &tokens), &expected), "{name}: pipeline");
        let straight = straight_logits(&pack.blueprint.spec, &pack, &tokens);
        assert!(same(&straight, &expected), "{name}: straight line");
    });
}

#[test]
fn every_format_runs_and_the_pipeline_equals_the_straight_line() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 400).collect();
    let cases: [&[(&str, &str)]; 9] = [
        &[],
        &[("scales", "f16")],
        &[("experts", "int3-g64"), ("dense", "int4-g32:f16"), ("io", "int4")],
        &[("experts", "int2"), ("dense", "int8"), ("io", "bf16")],
        &[("experts", "mxfp4"), ("dense", "mxfp4"), ("io", "f16"), ("mtp", "mxfp4")],
        &[("experts", "int4-row"), ("dense", "int4-row"), ("mtp", "int4-g64")],
        &[("experts", "int4-g128"), ("up-bits", "3"), ("down-bits", "8"), ("gate-bits", "2")],
        &[("experts", "f32"), ("dense", "f32"), ("io", "f32"), ("mtp", "keep")],
        &[("experts", "int4-g96"), ("dense", "int4-g48")],
    ];
    for (index, words) in cases.into_iter().enumerate() {
        let name = MODELS[index % MODELS.len()];
        let place = rooms.path().join(index.to_string());
        convert(&model(name), &place, &options(words));
        assert_eq!(deep(&place), [], "{name} {words:?}");
        let pack = open(&place);
        let straight = straight_logits(&pack.blueprint.spec, &pack, &tokens);
        assert!(straight.iter().all(|logit| logit.is_finite()), "{name} {words:?}");
        assert!(same(&engine_logits(&place, &tokens), &straight), "{name} {words:?}");
    }
}

/// All weights of a source as f32, tensor after tensor, and their names.
fn decoded(spec: &ModelSpec, source: &dyn WeightSource) -> Vec<(String, Vec<f32>)> {
    let mut tensors = vec![];
    for (layer, part) in resident_parts(spec) {
        let [rows, cols] = part_shape(spec, layer, part).expect("a part of the model");
        let mut values = vec![0.0; rows * cols];
        for piece in pieces(spec, layer, part) {
            let format = source.format(layer, part);
            let bytes = format.matrix_bytes(piece.rows.len(), piece.cols.len());
            let mut lines = aligned_bytes(bytes);
            let out: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut lines)[..bytes];
            source.read(layer, part, &piece, out).expect("it reads");
            let weights = Weights::new(format, piece.rows.len(), piece.cols.len(), out);
            spread(&weights, &piece, cols, &mut values);
        }
        tensors.push((format!("{layer:?} {part:?}"), values));
    }
    tensors
}

/// Puts a piece's values where they are in the whole matrix.
fn spread(weights: &Weights<'_>, piece: &Rectangle, cols: usize, values: &mut [f32]) {
    for (index, row) in piece.rows.clone().enumerate() {
        let out = &mut values[row * cols..][piece.cols.clone()];
        weights.decode_row(index, out);
    }
}

/// An expert's matrices as f32, read as the loader reads them.
fn decoded_expert(
    spec: &ModelSpec,
    source: &dyn WeightSource,
    files: &[std::sync::Arc<std::fs::File>],
    layer: LayerId,
    expert: ExpertId,
) -> [Vec<f32>; 3] {
    let moe = spec.layers[layer.index()].moe().expect("a mixture");
    let shape = ExpertShape::new(spec.hidden, moe, spec.slices, source.expert_formats(layer));
    let (mut staging, mut places) = (vec![], vec![]);
    for extent in source.expert_extents(layer, expert) {
        let first = staging.len();
        staging.resize(first + extent.bytes, 0);
        let file = &files[extent.file.index()];
        file.read_exact_at(&mut staging[first..], extent.offset).expect("it reads");
        places.push(first..staging.len());
    }
    EXPERT_MATRICES.map(|matrix| {
        let part = [Part::ExpertGate, Part::ExpertUp, Part::ExpertDown][matrix as usize](expert);
        let [rows, cols] = part_shape(spec, Some(layer), part).expect("an expert");
        let mut values = vec![0.0; rows * cols];
        for (slice, piece) in pieces(spec, Some(layer), part).iter().enumerate() {
            let mut lines = aligned_bytes(shape.slice_bytes());
            let out: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut lines)[..shape.slice_bytes()];
            let staged = Staged::new(&staging, &places);
            source.unpack_slice(layer, expert, &shape, slice, staged, out);
            source.verify_slice(layer, expert, slice, out).expect("undamaged");
            spread(&shape.weights(out, matrix), piece, cols, &mut values);
        }
        values
    })
}

fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let miss: f64 =
        found.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = expected.iter().map(|b| square(f64::from(*b))).sum();
    if size == 0.0 { miss } else { (miss / size).sqrt() }
}

#[test]
fn rounded_weights_are_near_the_sources_and_kept_ones_equal() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let bounds = [("keep", 0.0), ("int8", 0.012), ("int4", 0.12), ("int3", 0.24), ("mxfp4", 0.16)];
    for name in MODELS {
        let files = ModelFiles::open(&model(name)).expect("opens");
        let source = decoded(&files.blueprint.spec, &files);
        for (format, bound) in bounds {
            let place = rooms.path().join(format!("{name}-{format}"));
            let words = [("experts", format), ("dense", format), ("io", format)];
            convert(&model(name), &place, &options(&words));
            let pack = open(&place);
            for ((what, found), (_, expected)) in
                decoded(&pack.blueprint.spec, &pack).iter().zip(&source)
            {
                let error = relative_error(found, expected);
                assert!(error <= bound, "{name} {format} {what}: {error}");
            }
            let layer = (0..).find(|&l| files.blueprint.spec.layers[l].moe().is_some());
            let layer = LayerId(layer.expect("a mixture") as u32);
            for expert in [0, 5].map(ExpertId) {
                let (old, new) = (&files.blueprint.spec, &pack.blueprint.spec);
                let expected = decoded_expert(old, &files, files.checkpoint.files(), layer, expert);
                let found = decoded_expert(new, &pack, &pack.handles(), layer, expert);
                for (found, expected) in found.iter().zip(&expected) {
                    let error = relative_error(found, expected);
                    assert!(error <= bound, "{name} {format} {expert}: {error}");
                }
            }
        }
    }
}

/// The tiny model with 8192 words: an embedding of several runs.
fn large_vocabulary(place: &Path) {
    const WORDS: usize = 8192;
    let source = model("glm-dsa");
    std::fs::create_dir(place).expect("a directory");
    let config = std::fs::read_to_string(source.join("config.json")).expect("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["vocab_size"] = WORDS.into();
    std::fs::write(place.join("config.json"), config.to_string()).expect("written");
    let shards: Vec<Vec<u8>> = (1..=3)
        .map(|n| source.join(format!("model-0000{n}-of-00003.safetensors")))
        .map(|path| std::fs::read(path).expect("a shard"))
        .collect();
    let words: Vec<u8> = (0..WORDS * 96).flat_map(|i| [(i % 251) as u8, 0x3d]).collect();
    let mut tensors = vec![];
    for shard in &shards {
        for (name, view) in safetensors::SafeTensors::deserialize(shard).expect("opens").tensors() {
            let wide = ["model.embed_tokens.weight", "lm_head.weight"].contains(&name.as_str());
            let view = match wide {
                true => TensorView::new(Dtype::BF16, vec![WORDS, 96], &words).expect("a view"),
                false => view,
            };
            tensors.push((name, view));
        }
    }
    let bytes = safetensors::serialize(tensors, None).expect("serialised");
    std::fs::write(place.join("model.safetensors"), bytes).expect("written");
}

#[test]
fn rows_of_a_piece_are_those_of_the_whole() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let place = rooms.path().join("pack");
    let source = rooms.path().join("source");
    large_vocabulary(&source);
    convert(&source, &place, &options(&[("io", "f32")]));
    let pack = open(&place);
    let spec = &pack.blueprint.spec;
    let [rows, cols] = [spec.vocabulary, spec.hidden];
    let read_from = |pack: &PackFiles, rows: std::ops::Range<usize>| {
        let mut lines = aligned_bytes(rows.len() * cols * 4);
        let out: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut lines)[..rows.len() * cols * 4];
        let block = Rectangle { rows, cols: 0..cols };
        pack.read(None, Part::Embedding, &block, out).map(|()| out.to_vec())
    };
    let read = |rows| read_from(&pack, rows).expect("it reads");
    let whole = read(0..rows);
    assert!(whole.len() > 2 << 20, "the embedding has several runs");
    for part in [0..1, 5..6, 0..rows / 2, rows / 2..rows, 1..rows - 1, rows - 1..rows] {
        assert!(
            read(part.clone()) == whole[part.start * cols * 4..part.end * cols * 4],
            "{part:?}"
        );
    }
    // Rows beside a damaged one share its checksum: they aren't handed out, unless nobody checks.
    let path = place.join("resident.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    let embedding = pack.layouts().next().expect("a file").tensors[0].offset as usize;
    bytes[embedding + 7 * 4 * cols] ^= 4;
    std::fs::write(&path, bytes).expect("written");
    let pack = open(&place);
    for part in [0..5, 7..8, 8..9, 1..rows] {
        let error = read_from(&pack, part.clone()).expect_err("damaged").to_string();
        assert!(error.contains("model.embed_tokens.weight"), "{part:?}: {error}");
    }
    let far = rows - 5..rows;
    assert!(read_from(&pack, far.clone()).is_ok(), "another run");
    let trusting = PackChecks { resident: false, experts: false };
    let pack = PackFiles::open(&place, trusting).expect("it opens");
    assert!(read_from(&pack, 0..rows).is_ok() && read_from(&pack, 0..5).is_ok());
}

#[test]
fn any_safetensors_reader_opens_every_file() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let place = rooms.path().join("pack");
    convert(&model("glm-dsa"), &place, &Options::default());
    let pack = open(&place);
    let mut count = 0;
    for layout in pack.layouts() {
        let bytes = std::fs::read(place.join(&layout.name)).expect("a file");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("it opens");
        let (header, _) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
        assert_eq!((8 + header) % 4096, 0, "{}", layout.name);
        assert_eq!(file.len(), layout.tensors.len() + 1);
        for tensor in &layout.tensors {
            let view = file.tensor(&tensor.name).expect("the tensor");
            let (first, length) = (tensor.offset as usize, tensor.bytes as usize);
            assert!(view.data() == &bytes[first..first + length], "{}", tensor.name);
            let direct = tensor.sections.iter().any(|section| section.bytes >= 64 << 10);
            let expert = tensor.name.ends_with(".packed");
            let align = if direct || expert { 4096 } else { 64 };
            assert_eq!(tensor.offset % align, 0, "{}", tensor.name);
            count += 1;
        }
        let sums = file.tensor("millstream.checksums").expect("checksums");
        assert_eq!(sums.shape(), [layout.checksums]);
        let of =
            |index: usize| u64::from_le_bytes(sums.data()[8 * index..][..8].try_into().expect("8"));
        for section in layout.tensors.iter().flat_map(|tensor| &tensor.sections) {
            let (first, length) = (section.offset as usize, section.bytes as usize);
            let runs = sums_of(&bytes[first..first + length], section.run_bytes as usize);
            for (run, sum) in runs.into_iter().enumerate() {
                assert_eq!(sum, of(section.first_checksum + run), "{}", layout.name);
            }
        }
    }
    assert!(count > 100, "{count} tensors");
}

/// XXH3 of each run.
fn sums_of(section: &[u8], run: usize) -> Vec<u64> {
    section.chunks(run).map(xxhash_rust::xxh3::xxh3_64).collect()
}

/// Numbers from a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// Reads everything as the engine does: all resident pieces, and all experts through `verify`.
fn load_all(directory: &Path) -> Result<(), String> {
    let checks = PackChecks { resident: true, experts: true };
    let pack = PackFiles::open(directory, checks).map_err(|error| error.to_string())?;
    let spec = &pack.blueprint.spec;
    for (layer, part) in resident_parts(spec) {
        for piece in pieces(spec, layer, part) {
            let format = pack.format(layer, part);
            let bytes = format.matrix_bytes(piece.rows.len(), piece.cols.len());
            let mut out = vec![0; bytes];
            pack.read(layer, part, &piece, &mut out).map_err(|error| error.to_string())?;
        }
    }
    let handles = pack.handles();
    for (index, layer) in spec.layers.iter().enumerate() {
        let id = LayerId(index as u32);
        for expert in 0..layer.moe().map_or(0, |moe| moe.experts) {
            let expert = ExpertId(expert as u32);
            let extent = pack.expert_extents(id, expert)[0];
            let mut staging = vec![0; extent.bytes];
            let file = &handles[extent.file.index()];
            file.read_exact_at(&mut staging, extent.offset).expect("it reads");
            let slices = staging.chunks(extent.bytes / spec.slices).enumerate();
            for (slice, bytes) in slices {
                let outcome = pack.verify_slice(id, expert, slice, bytes);
                outcome.map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_flipped_byte_is_found_and_named() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let place = rooms.path().join("pack");
    convert(&model("glm-dsa"), &place, &options(&[("experts", "int4-g32"), ("io", "keep")]));
    assert_eq!(load_all(&place), Ok(()));
    let layouts: Vec<_> = open(&place).layouts().cloned().collect();
    let mut random = Random(5);
    let mut loaded = 0;
    for (name, bytes) in contents(&place) {
        let mut places: Vec<usize> = (0..25).map(|_| random.below(bytes.len())).collect();
        places.extend([0, 7, 8, bytes.len() / 2, bytes.len() - 1]);
        for at in places {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << random.below(8);
            std::fs::write(place.join(&name), &damaged).expect("written");
            let findings = deep(&place);
            let text = findings.first().map(ToString::to_string).unwrap_or_default();
            assert!(text.contains(&name), "{name} byte {at}: {findings:?}");
            let layout = layouts.iter().find(|layout| layout.name == name);
            let tensor = layout.and_then(|layout| {
                let inside = |t: &&_| holds(t, at as u64);
                layout.tensors.iter().find(inside)
            });
            let Some(tensor) = tensor else { continue };
            let section = tensor
                .sections
                .iter()
                .position(|s| (s.offset..s.offset + s.bytes).contains(&(at as u64)));
            let named = match (name.starts_with("experts-"), section) {
                (true, Some(slice)) => {
                    let numbers: Vec<&str> = tensor.name.split('.').collect();
                    format!("layer {} expert {} slice {slice}", numbers[2], numbers[5])
                }
                (false, Some(piece)) => format!("\"{}\" piece {piece}", tensor.name),
                (_, None) => format!("filling of tensor \"{}\"", tensor.name),
            };
            assert!(text.contains(&named), "{name} byte {at}: {named} is not in {text}");
            // What the engine doesn't read can't harm it.
            if section.is_some() && name != "mtp.safetensors" {
                let error = load_all(&place).expect_err("found at load");
                assert!(error.contains(&named) && error.contains(&name), "{named}: {error}");
                loaded += 1;
            }
        }
        std::fs::write(place.join(&name), &bytes).expect("written");
    }
    assert!(loaded > 100, "{loaded} flips were seen by the engine's own reads");
    assert_eq!(deep(&place), []);
}

fn holds(tensor: &millstream::checkpoint::pack::layout::TensorLayout, at: u64) -> bool {
    (tensor.offset..tensor.offset + tensor.bytes).contains(&at)
}

/// Why a pack doesn't open.
fn refusal(directory: &Path) -> String {
    let error = PackFiles::open(directory, PackChecks::default()).expect_err("refused");
    error.to_string()
}

#[test]
fn missing_short_and_foreign_files_are_refused_by_name() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let place = rooms.path().join("pack");
    convert(&tiny(), &place, &Options::default());
    for (name, bytes) in contents(&place) {
        let path = place.join(&name);
        std::fs::remove_file(&path).expect("removed");
        if name != "millstream.json" {
            let findings = deep(&place);
            assert!(findings.iter().any(|f| f.to_string().contains(&name)), "{name}: {findings:?}");
        }
        if name.ends_with(".safetensors") {
            assert!(refusal(&place).contains(&name), "{}", refusal(&place));
            std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("written");
            let text = refusal(&place);
            assert!(text.contains(&name) && text.contains("calls for"), "{text}");
        }
        std::fs::write(&path, &bytes).expect("written");
    }
    let config = place.join("config.json");
    let text = std::fs::read_to_string(&config).expect("read");
    std::fs::write(&config, text.replacen("\"hidden_size\"", "\"hidden_size\" ", 1))
        .expect("written");
    assert!(refusal(&place).contains("config.json"), "{}", refusal(&place));
    std::fs::write(&config, text).expect("written");
    assert_eq!(load_all(&place), Ok(()));
}

#[test]
fn manifests_that_lie_are_refused() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let place = rooms.path().join("pack");
    convert(&tiny(), &place, &Options::default());
    let path = place.join("millstream.json");
    let text = std::fs::read_to_string(&path).expect("read");
    let good = Manifest::parse(&path, text.as_bytes()).expect("a manifest");
    // Lies that are told with the right checksum.
    let lie = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        std::fs::write(&path, manifest.to_text()).expect("written");
        refusal(&place)
    };
    let said = lie(&|m| m.slices = if m.slices == 1 { 2 } else { 1 });
    assert!(said.contains("slices"), "{said}");
    let said = lie(&|m| m.tensors[3].rows += 1);
    assert!(said.contains("config.json"), "{said}");
    let said = lie(&|m| m.tensors[3].format = "int5".into());
    assert!(said.contains("int5"), "{said}");
    let said = lie(&|m| m.tensors[1].format = "int8-row".into());
    assert!(said.contains("input_layernorm") && said.contains("floats"), "{said}");
    let said = lie(&|m| m.tensors[0].format = "f32".into());
    assert!(said.contains("resident.safetensors"), "{said}");
    let said = lie(&|m| m.experts[0].gate = "f32".into());
    assert!(said.contains("experts-"), "{said}");
    let said = lie(&|m| {
        m.experts.pop();
    });
    assert!(said.contains("experts"), "{said}");
    let said = lie(&|m| m.files.retain(|file| file.name != "resident.safetensors"));
    assert!(said.contains("resident.safetensors"), "{said}");
    let said = lie(&|m| m.files[0].name = "../config.json".into());
    assert!(said.contains("limit"), "{said}");
    let said = lie(&|m| m.tensors[0].cols = usize::MAX);
    assert!(said.contains("limit"), "{said}");
    let said = lie(&|m| m.complete = false);
    assert!(said.contains("isn't finished") && said.contains("millstream convert"), "{said}");
    let said = lie(&|m| m.version = 2);
    assert!(said.contains("version 2") && said.contains("version 1"), "{said}");
    // Lies that aren't.
    for (from, to) in
        [("\"slices\"", "\"slicesX\""), ("\"tensors\"", "\"extra\": 1,\n  \"tensors\"")]
    {
        std::fs::write(&path, text.replacen(from, to, 1)).expect("written");
        assert!(refusal(&place).contains("millstream.json"), "{}", refusal(&place));
    }
    std::fs::write(&path, text.replacen("\"made_by\": \"m", "\"made_by\": \"M", 1))
        .expect("written");
    assert!(refusal(&place).contains("checksum"), "{}", refusal(&place));
}

#[test]
fn drafts_are_kept_whole_in_their_own_file() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let place = rooms.path().join("pack");
    convert(&model("glm-dsa"), &place, &options(&[("mtp", "int4")]));
    let pack = open(&place);
    let files = ModelFiles::open(&model("glm-dsa")).expect("opens");
    let prefix = format!("model.layers.{}.", files.blueprint.spec.layers.len());
    let in_source: Vec<&str> = files
        .checkpoint
        .tensors()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with(&prefix))
        .collect();
    let in_pack: Vec<&str> = pack.formats().mtp.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(in_pack, in_source);
    let format = |end: &str| {
        let found = pack.formats().mtp.iter().find(|tensor| tensor.name.ends_with(end));
        found.expect("the tensor").format.to_string()
    };
    assert_eq!(format("eh_proj.weight"), "int4-g64");
    assert_eq!(format("mlp.experts.0.up_proj.weight"), "int4-g64");
    for kept in ["enorm.weight", "mlp.gate.weight", "e_score_correction_bias"] {
        assert!(["bf16", "f32"].contains(&format(kept).as_str()), "{kept}");
    }
}

/// The configuration of GLM-5.2 as far as sizes go.
const GLM: &str = r#"{"model_type":"glm_moe_dsa","hidden_size":6144,"vocab_size":154880,
    "num_hidden_layers":78,"first_k_dense_replace":3,"intermediate_size":12288,
    "moe_intermediate_size":2048,"n_routed_experts":256,"num_experts_per_tok":8,
    "n_shared_experts":1,"num_attention_heads":64,"q_lora_rank":2048,"kv_lora_rank":512,
    "qk_nope_head_dim":192,"qk_rope_head_dim":64,"v_head_dim":256,"rms_norm_eps":1e-5,
    "rope_theta":1000000,"routed_scaling_factor":2.5,"index_topk":0}"#;

#[test]
fn every_slice_of_a_large_model_can_be_read_directly() {
    let config = ConfigReader::parse("config.json", GLM.as_bytes()).expect("JSON");
    let mut blueprint = blueprint(&config, &|_| false).expect("a model");
    let of = |name: &str| name.parse().expect("a format");
    for (experts, slice_bytes) in [("int4-g64", 2_654_208), ("int3-g64:f16", 1_916_928)] {
        let formats = Formats {
            resident: vec![of("int8-row"); resident_parts(&blueprint.spec).len()],
            experts: blueprint
                .spec
                .layers
                .iter()
                .map(|l| l.moe().map(|_| [of(experts); 3]))
                .collect(),
            mtp: vec![],
        };
        blueprint.spec.slices = slices_by(&blueprint, &formats);
        assert_eq!(blueprint.spec.slices, 8);
        let files = file_layouts(&blueprint, &formats);
        assert_eq!(files.len(), 1 + 75);
        let mut end = 0;
        for file in &files {
            let sections = file.tensors.iter().flat_map(|tensor| &tensor.sections);
            for section in sections.filter(|section| section.bytes >= 64 << 10) {
                assert_eq!(section.offset % 4096, 0, "{}", file.name);
            }
            let of_experts = file.tensors.iter().filter(|t| t.name.ends_with("packed"));
            for section in of_experts.flat_map(|tensor| &tensor.sections) {
                assert_eq!(section.bytes, slice_bytes, "{experts}");
            }
            for tensor in &file.tensors {
                let first = file.tensors[0].offset == tensor.offset;
                assert!(first || tensor.offset == end, "{}: a gap", tensor.name);
                end = tensor.offset + tensor.bytes;
            }
            assert_eq!(end, file.checksums_offset);
        }
    }
}
