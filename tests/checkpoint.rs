//! Valid checkpoints: what is in the files is what the stages get, in every stored format.
//!
//! The models are written by the test; expected values are computed here from the written bytes.

mod checkpoint_files;

use checkpoint_files::{TestModel, TestTensor, file_bytes};
use millstream::checkpoint::ModelFiles;
use millstream::checkpoint::describe::describe;
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::resident_parts;
use millstream_stages::spec::{AttentionSpec, IndexerUse};
use millstream_stages::weights::{ExpertParts, Matrix, MatrixData, Part, WeightSource};
use safetensors::Dtype;
use std::os::unix::fs::FileExt;
use tempfile::TempDir;

const MOE_LAYER: LayerId = LayerId(1);
const EXPERT: ExpertId = ExpertId(2);
const EXPERT_PREFIX: &str = "model.layers.1.mlp.experts.2.";

fn open(model: &TestModel) -> (TempDir, ModelFiles) {
    let directory = tempfile::tempdir().expect("a directory");
    model.write(directory.path());
    let files = ModelFiles::open(directory.path()).expect("opens");
    (directory, files)
}

/// The values of a bf16 tensor of the model.
fn values(model: &mut TestModel, name: &str) -> Vec<f32> {
    let bytes = model.tensor(name).data.as_chunks::<2>().0.iter();
    bytes.map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)).collect()
}

/// Replaces a tensor's bytes and type, and adds scales under `scales` if there are any.
fn restore(
    model: &mut TestModel,
    name: &str,
    (dtype, data): (Dtype, Vec<u8>),
    scales: Option<(String, Vec<usize>, Vec<f32>)>,
) {
    let tensor = model.tensor(name);
    (tensor.dtype, tensor.data) = (dtype, data);
    if let Some((name, shape, values)) = scales {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        model.tensors.push(TestTensor { name, dtype: Dtype::F32, shape, data });
    }
}

/// Reads an expert the way the loader does, and unpacks it.
fn unpack(files: &ModelFiles, layer: LayerId, expert: ExpertId) -> [Vec<f32>; 3] {
    let mut staging = Vec::new();
    for extent in files.expert_extents(layer, expert) {
        let start = staging.len();
        staging.resize(start + extent.bytes, 0);
        let file = &files.checkpoint.files()[extent.file.index()];
        file.read_exact_at(&mut staging[start..], extent.offset).expect("read");
    }
    let weights = 6 * 16;
    match files.expert_format(layer) {
        WeightFormat::F32 => {
            let mut parts = [(); 3].map(|()| vec![0f32; weights]);
            let [gate, up, down] = parts.each_mut().map(|p| bytemuck::cast_slice_mut(p));
            files.unpack_expert(layer, expert, &staging, ExpertParts { gate, up, down });
            parts
        }
        WeightFormat::Bf16 => {
            let mut parts = [(); 3].map(|()| vec![0u16; weights]);
            let [gate, up, down] = parts.each_mut().map(|p| bytemuck::cast_slice_mut(p));
            files.unpack_expert(layer, expert, &staging, ExpertParts { gate, up, down });
            parts.map(|data| {
                Matrix { rows: 1, cols: weights, data: MatrixData::Bf16(data) }.to_f32()
            })
        }
    }
}

#[test]
fn every_resident_tensor_loads_as_it_was_written() {
    let mut model = TestModel::valid();
    let (_directory, files) = open(&model);
    for (layer, part) in resident_parts(&files.blueprint.spec) {
        let name = (files.blueprint.tensor_name)(layer, part);
        let matrix = files.load(layer, part).expect("loads");
        assert_eq!(matrix.to_f32(), values(&mut model, &name), "{name}");
        let shape = &model.tensor(&name).shape;
        assert_eq!(matrix.cols, *shape.last().expect("a shape"), "{name}");
        assert_eq!(matrix.rows, if shape.len() == 2 { shape[0] } else { 1 }, "{name}");
    }
}

#[test]
fn expert_unpacks_to_what_was_written() {
    let mut model = TestModel::valid();
    let (_directory, files) = open(&model);
    let unpacked = unpack(&files, MOE_LAYER, EXPERT);
    let parts = [Part::ExpertGate(EXPERT), Part::ExpertUp(EXPERT), Part::ExpertDown(EXPERT)];
    for (index, name) in
        ["gate_proj.weight", "up_proj.weight", "down_proj.weight"].iter().enumerate()
    {
        let written = values(&mut model, &format!("{EXPERT_PREFIX}{name}"));
        assert_eq!(unpacked[index], written, "{name}");
        assert_eq!(files.load(Some(MOE_LAYER), parts[index]).expect("loads").to_f32(), written);
    }
}

#[test]
fn neighbouring_tensors_of_an_expert_are_one_read() {
    let (_directory, files) = open(&TestModel::valid());
    let extents = files.expert_extents(MOE_LAYER, EXPERT);
    assert_eq!(extents.len(), 1, "{extents:?}");
    assert_eq!(extents[0].bytes, 3 * 6 * 16 * 2);
}

#[test]
fn mixed_formats_of_an_expert_are_widened_exactly() {
    let mut model = TestModel::valid();
    let [gate, up, down] =
        ["gate_proj", "up_proj", "down_proj"].map(|name| format!("{EXPERT_PREFIX}{name}.weight"));
    // Gate as f32, up as f16 (1, 1.5, the smallest subnormal, -2), down as int8 with row scales.
    let gate_values: Vec<f32> = (0..96).map(|i| i as f32 * 0.37 - 5.0).collect();
    let gate_bytes = gate_values.iter().flat_map(|v| v.to_le_bytes()).collect();
    restore(&mut model, &gate, (Dtype::F32, gate_bytes), None);
    let halves = [(0x3c00u16, 1.0f32), (0x3e00, 1.5), (0x0001, 5.960_464_5e-8), (0xc000, -2.0)];
    let up_bytes = (0..96).flat_map(|i| halves[i % 4].0.to_le_bytes()).collect();
    restore(&mut model, &up, (Dtype::F16, up_bytes), None);
    let scales: Vec<f32> = (0..16).map(|row| 0.25 + row as f32).collect();
    let down_bytes: Vec<u8> = (0..96).map(|i| (i as i8 - 48) as u8).collect();
    let row_scale = (format!("{down}.row_scale"), vec![16], scales.clone());
    restore(&mut model, &down, (Dtype::I8, down_bytes), Some(row_scale));

    let (_directory, files) = open(&model);
    assert_eq!(files.expert_format(MOE_LAYER), WeightFormat::F32);
    let unpacked = unpack(&files, MOE_LAYER, EXPERT);
    assert_eq!(unpacked[0], gate_values);
    assert_eq!(unpacked[1], (0..96).map(|i| halves[i % 4].1).collect::<Vec<f32>>());
    let expected = (0..96).map(|i| (i as f32 - 48.0) * scales[i / 6]);
    assert_eq!(unpacked[2], expected.collect::<Vec<f32>>());
    assert_eq!(
        files.load(Some(MOE_LAYER), Part::ExpertDown(EXPERT)).unwrap().to_f32(),
        unpacked[2]
    );
    // Another expert of the layer, stored as bf16, is handed over in the layer's format.
    let other = unpack(&files, MOE_LAYER, ExpertId(0));
    assert_eq!(other[0], values(&mut model, "model.layers.1.mlp.experts.0.gate_proj.weight"));
}

/// A model whose output head is large enough for several scale blocks and several threads.
fn model_with_a_large_fp8_head() -> (TestModel, Vec<f32>) {
    let rows = 20_001;
    let mut model = TestModel::valid();
    model.set("vocab_size", &rows.to_string());
    model.set(
        "quantization_config",
        "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}",
    );
    let embedding = model.tensor("model.embed_tokens.weight");
    embedding.shape[0] = rows;
    embedding.data = vec![0; rows * 16 * 2];
    // E4M3: 0x38 is 1, 0xc4 is -3, 0x01 is 2^-9, 0x7e is 448.
    let codes = [(0x38u8, 1.0f32), (0xc4, -3.0), (0x01, 0.001_953_125), (0x7e, 448.0)];
    let blocks = rows.div_ceil(128);
    let scales: Vec<f32> = (0..blocks).map(|block| 0.5 + block as f32).collect();
    let data = (0..rows * 16).map(|i| codes[(i + i / 16) % 4].0).collect();
    let expected =
        (0..rows * 16).map(|i| codes[(i + i / 16) % 4].1 * scales[i / 16 / 128]).collect();
    model.tensor("lm_head.weight").shape[0] = rows;
    let named = ("lm_head.weight_scale_inv".to_string(), vec![blocks, 1], scales);
    restore(&mut model, "lm_head.weight", (Dtype::F8_E4M3, data), Some(named));
    (model, expected)
}

#[test]
fn fp8_blocks_are_widened_with_their_own_scales() {
    let (model, expected) = model_with_a_large_fp8_head();
    let (_directory, files) = open(&model);
    let head = files.load(None, Part::Head).expect("loads");
    assert!(head.to_f32() == expected, "some weight has another scale or value");
}

#[test]
fn bf16_scales_are_read_as_such() {
    let (mut model, expected) = model_with_a_large_fp8_head();
    let scales = model.tensor("lm_head.weight_scale_inv");
    scales.dtype = Dtype::BF16;
    // All scales are k + 0.5 with k < 157: exact in bf16 below 128.
    let kept = scales.data.as_chunks::<4>().0.iter().flat_map(|b| [b[2], b[3]]).collect();
    scales.data = kept;
    let (_directory, files) = open(&model);
    let exact = 128 * 100 * 16;
    let head = files.load(None, Part::Head).expect("loads");
    assert!(head.to_f32()[..exact] == expected[..exact]);
}

#[test]
fn model_in_several_files_gives_the_same_weights() {
    let model = TestModel::valid();
    let (_whole_directory, whole) = open(&model);
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("config.json"), model.config_text()).expect("written");
    let mut entries = Vec::new();
    for (shard, tensors) in model.tensors.chunks(11).enumerate() {
        let name = format!("model-{shard}.safetensors");
        std::fs::write(directory.path().join(&name), file_bytes(tensors)).expect("written");
        entries.extend(tensors.iter().map(|tensor| format!("\"{}\":\"{name}\"", tensor.name)));
    }
    let index = format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", entries.join(","));
    std::fs::write(directory.path().join("model.safetensors.index.json"), index).expect("written");
    let split = ModelFiles::open(directory.path()).expect("opens");
    assert!(split.checkpoint.files().len() > 5);
    for (layer, part) in resident_parts(&whole.blueprint.spec) {
        assert_eq!(split.load(layer, part).unwrap(), whole.load(layer, part).unwrap());
    }
    for layer in [LayerId(1), LayerId(2)] {
        for expert in (0..4).map(ExpertId) {
            assert_eq!(unpack(&split, layer, expert), unpack(&whole, layer, expert));
        }
    }
}

#[test]
fn file_cut_off_after_opening_gives_an_error_that_says_where() {
    let (directory, files) = open(&TestModel::valid());
    let path = directory.path().join("model.safetensors");
    let weights = std::fs::OpenOptions::new().write(true).open(path).expect("opened");
    let keep = weights.metadata().expect("metadata").len() - 10;
    weights.set_len(keep).expect("cut");
    let parts = resident_parts(&files.blueprint.spec).into_iter();
    let experts = [Part::ExpertGate, Part::ExpertUp, Part::ExpertDown];
    let experts = (1..3).flat_map(|layer| {
        let parts = (0..4).flat_map(|id| experts.map(|part| part(ExpertId(id))));
        parts.map(move |part| (Some(LayerId(layer)), part))
    });
    let failed: Vec<String> = parts
        .chain(experts)
        .filter_map(|(layer, part)| files.load(layer, part).err())
        .map(|error| error.to_string())
        .collect();
    assert_eq!(failed.len(), 1, "only the last tensor is affected: {failed:?}");
    assert!(
        failed[0].contains("truncated") && failed[0].contains("model.safetensors"),
        "{failed:?}"
    );
}

#[test]
fn stranger_is_a_warning_and_a_draft_layer_is_not() {
    let mut model = TestModel::valid();
    model.set("num_nextn_predict_layers", "1");
    for name in [
        "model.layers.3.enorm.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.4.enorm.weight",
        "extra",
    ] {
        let tensor = model.tensor("model.norm.weight").clone();
        model.tensors.push(TestTensor { name: name.to_string(), ..tensor });
    }
    let (_directory, files) = open(&model);
    assert_eq!(files.unknown, ["extra", "model.layers.4.enorm.weight"]);
    let description = describe(&files);
    assert_eq!((description.skipped_tensors, description.draft_layers), (2, 1));
}

fn indexers(files: &ModelFiles) -> String {
    let layers = files.blueprint.spec.layers.iter();
    layers
        .map(|layer| {
            let AttentionSpec::Mla(mla) = &layer.attention;
            match mla.indexer {
                IndexerUse::Dense => 'D',
                IndexerUse::Full(_) => 'F',
                IndexerUse::Shared => 'S',
            }
        })
        .collect()
}

#[test]
fn indexer_schedule_comes_from_types_pattern_or_formula() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[], "FFS"),
        (&[("indexer_types", "[\"full\",\"shared\",\"shared\"]")], "FSS"),
        (&[("index_topk_pattern", "\"FSS\""), ("indexer_types", "null")], "FSS"),
        (&[("index_topk", "0")], "DDD"),
        (&[("index_topk", "null")], "DDD"),
    ];
    for (fields, expected) in cases {
        let mut model = TestModel::valid();
        fields.iter().for_each(|(field, value)| model.set(field, value));
        assert_eq!(indexers(&open(&model).1), expected, "{fields:?}");
    }
    let mut model = TestModel::valid();
    model.tensors.retain(|tensor| !tensor.name.contains("indexer"));
    assert_eq!(indexers(&open(&model).1), "DDD", "no indexer weights");
}

#[test]
fn end_tokens_of_both_configurations_count() {
    let directory = tempfile::tempdir().expect("a directory");
    TestModel::valid().write(directory.path());
    let path = directory.path().join("generation_config.json");
    std::fs::write(path, "{\"eos_token_id\":[5,7],\"temperature\":1.0}").expect("written");
    let files = ModelFiles::open(directory.path()).expect("opens");
    assert_eq!(files.blueprint.tokens.eos, [3, 5, 7]);
    assert_eq!(files.blueprint.tokens.bos, None);
}

#[test]
fn description_adds_up() {
    let model = TestModel::valid();
    let (_directory, files) = open(&model);
    let description = describe(&files);
    let bytes: u64 = model.tensors.iter().map(|tensor| tensor.data.len() as u64).sum();
    assert_eq!(description.resident_stored_bytes + description.experts_stored_bytes, bytes);
    assert_eq!(description.weights * 2, bytes);
    assert_eq!(description.formats[0].tensors, model.tensors.len());
    assert_eq!(description.expert_stored_bytes_max, 3 * 6 * 16 * 2);
    assert_eq!(description.expert_bytes_per_token, 2 * 2 * 3 * 6 * 16 * 2);
    assert!(description.to_string().contains("glm_moe_dsa"));
    assert!(serde_json::to_string(&description).expect("JSON").contains("weights_per_token"));
}
