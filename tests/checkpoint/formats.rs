//! Quantised and mixed tensors of Hugging Face snapshots: each format is what its bytes say.

use crate::checkpoint_files::{TestModel, TestTensor};
use crate::checkpoint_reading::{read, read_expert};
use crate::{EXPERT, EXPERT_PREFIX, MOE_LAYER, open, power_of_two, values};
use millstream::checkpoint::ModelFiles;
use millstream_kernels::{ScaleType, WeightFormat};
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::weights::{Part, WeightSource};
use safetensors::Dtype;

/// Replaces a tensor's bytes and type.
fn restore(model: &mut TestModel, name: &str, dtype: Dtype, data: Vec<u8>) {
    let tensor = model.tensor(name);
    (tensor.dtype, tensor.data) = (dtype, data);
}

/// Adds a tensor of f32 scales.
fn add_scales(model: &mut TestModel, name: &str, shape: &[usize], values: &[f32]) {
    let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (name, shape) = (name.to_string(), shape.to_vec());
    model.tensors.push(TestTensor { name, dtype: Dtype::F32, shape, data });
}

fn refusal(model: &TestModel) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    model.write(directory.path());
    ModelFiles::open(directory.path()).expect_err("refused").to_string()
}

#[test]
fn floats_of_several_kinds_are_widened_exactly() {
    let mut model = TestModel::valid();
    let [gate, up] = ["gate_proj", "up_proj"].map(|name| format!("{EXPERT_PREFIX}{name}.weight"));
    // One expert's gate as f32, up as f16 (1, 1.5, the smallest subnormal, -2).
    let gate_values: Vec<f32> = (0..96).map(|i| i as f32 * 0.37 - 5.0).collect();
    let gate_bytes = gate_values.iter().flat_map(|v| v.to_le_bytes()).collect();
    restore(&mut model, &gate, Dtype::F32, gate_bytes);
    let halves = [(0x3c00u16, 1.0f32), (0x3e00, 1.5), (0x0001, 5.960_464_5e-8), (0xc000, -2.0)];
    let up_bytes = (0..96).flat_map(|i| halves[i % 4].0.to_le_bytes()).collect();
    restore(&mut model, &up, Dtype::F16, up_bytes);

    let (_directory, files) = open(&model);
    let formats = [WeightFormat::F32, WeightFormat::F32, WeightFormat::Bf16];
    assert_eq!(files.expert_formats(MOE_LAYER), formats);
    assert_eq!(files.expert_formats(LayerId(2)), [WeightFormat::Bf16; 3]);
    let unpacked = read_expert(&files, MOE_LAYER, EXPERT);
    assert_eq!(unpacked[0], gate_values);
    assert_eq!(unpacked[1], (0..96).map(|i| halves[i % 4].1).collect::<Vec<f32>>());
    let parts = [Part::ExpertGate(EXPERT), Part::ExpertUp(EXPERT), Part::ExpertDown(EXPERT)];
    for (part, unpacked) in parts.into_iter().zip(&unpacked) {
        assert_eq!(read(&files, Some(MOE_LAYER), part).expect("reads"), *unpacked, "{part:?}");
    }
    // Another expert of the layer, stored as bf16, is handed over in the layer's formats.
    let other = read_expert(&files, MOE_LAYER, ExpertId(0));
    assert_eq!(other[0], values(&mut model, "model.layers.1.mlp.experts.0.gate_proj.weight"));
    assert_eq!(other[2], values(&mut model, "model.layers.1.mlp.experts.0.down_proj.weight"));
}

/// Stores the down projections of some experts of a layer as signed bytes with a scale a row.
fn store_rows(model: &mut TestModel, experts: std::ops::Range<u32>) -> (Vec<f32>, Vec<i8>) {
    let scales: Vec<f32> = (0..16).map(|row| 0.25 + row as f32).collect();
    let codes: Vec<i8> = (0..96).map(|i| (i * 5 - 128) as i8).collect();
    for expert in experts {
        let name = format!("model.layers.1.mlp.experts.{expert}.down_proj.weight");
        restore(model, &name, Dtype::I8, codes.iter().map(|&code| code as u8).collect());
        add_scales(model, &format!("{name}.row_scale"), &[16], &scales);
    }
    (scales, codes)
}

#[test]
fn signed_bytes_are_read_with_a_scale_a_row() {
    let mut model = TestModel::valid();
    let (scales, codes) = store_rows(&mut model, 0..4);
    let (_directory, files) = open(&model);
    let format = WeightFormat::Int8Row(ScaleType::F32);
    assert_eq!(files.expert_formats(MOE_LAYER)[2], format);
    let expected: Vec<f32> = (0..96).map(|i| f32::from(codes[i]) * scales[i / 6]).collect();
    assert_eq!(read_expert(&files, MOE_LAYER, EXPERT)[2], expected);
    assert_eq!(read(&files, Some(MOE_LAYER), Part::ExpertDown(EXPERT)).unwrap(), expected);
    // Three runs of scales and weights, each a neighbour of another or not: all bytes are read.
    let bytes: usize = files.expert_extents(MOE_LAYER, EXPERT).iter().map(|e| e.bytes).sum();
    assert_eq!(bytes, 2 * 96 * 2 + 96 + 16 * 4);
}

#[test]
fn experts_of_a_layer_in_different_codes_are_refused_by_name() {
    let mut model = TestModel::valid();
    store_rows(&mut model, 2..3);
    let message = refusal(&model);
    for word in ["layers.1.mlp.experts.2.down_proj.weight", "int8-row", "bf16"] {
        assert!(message.contains(word), "{message}");
    }
}

/// E4M3: 0x38 is 1, 0xc4 is -3, 0x01 is 2^-9, 0x7e is 448.
const E4M3: [(u8, f32); 4] = [(0x38, 1.0), (0xc4, -3.0), (0x01, 0.001_953_125), (0x7e, 448.0)];

/// A model whose output head is large enough for several scale blocks and several threads; block
/// `b` has scale `scale(b)`.
fn model_with_a_large_fp8_head(scale: fn(usize) -> f32) -> (TestModel, Vec<f32>) {
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
    let blocks = rows.div_ceil(128);
    let scales: Vec<f32> = (0..blocks).map(scale).collect();
    let data = (0..rows * 16).map(|i| E4M3[(i + i / 16) % 4].0).collect();
    let expected = (0..rows * 16).map(|i| E4M3[(i + i / 16) % 4].1 * scales[i / 16 / 128]);
    model.tensor("lm_head.weight").shape[0] = rows;
    restore(&mut model, "lm_head.weight", Dtype::F8_E4M3, data);
    add_scales(&mut model, "lm_head.weight_scale_inv", &[blocks, 1], &scales);
    (model, expected.collect())
}

#[test]
fn fp8_blocks_are_read_with_their_own_scales() {
    let (model, expected) = model_with_a_large_fp8_head(|block| 0.5 + block as f32);
    let (_directory, files) = open(&model);
    assert_eq!(files.format(None, Part::Head), WeightFormat::Fp8Block128(ScaleType::F32));
    let head = read(&files, None, Part::Head).expect("reads");
    assert!(head == expected, "some weight has another scale or value");
}

#[test]
fn scales_of_other_types_are_read_as_such() {
    // Powers of two have no more than an exponent: the upper half of an f32, or its exponent.
    let (model, expected) =
        model_with_a_large_fp8_head(|block| power_of_two(123 + block as u8 % 9));
    type Convert = fn([u8; 4]) -> Vec<u8>;
    let upper: Convert = |b| vec![b[2], b[3]];
    let exponent: Convert = |b| vec![b[3] << 1 | b[2] >> 7];
    for (dtype, scale, convert) in [
        (Dtype::BF16, ScaleType::Bf16, upper),
        (Dtype::F8_E8M0, ScaleType::Ue8m0, exponent),
        (Dtype::U8, ScaleType::Ue8m0, exponent),
    ] {
        let mut model = model.clone();
        let scales = model.tensor("lm_head.weight_scale_inv");
        scales.dtype = dtype;
        scales.data = scales.data.as_chunks::<4>().0.iter().flat_map(|b| convert(*b)).collect();
        let (_directory, files) = open(&model);
        assert_eq!(files.format(None, Part::Head), WeightFormat::Fp8Block128(scale));
        assert!(read(&files, None, Part::Head).expect("reads") == expected, "{dtype:?}");
    }
}

/// E2M1: the value of every nibble.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A model 64 wide whose gates of experts are pairs of nibbles and scales, under names that end so.
fn model_with_mxfp4_gates(nibbles: &str, scales: &str, blocks: bool) -> (TestModel, Vec<f32>) {
    let mut model = TestModel::of_hidden(64);
    model.set("quantization_config", "{\"quant_method\":\"mxfp4\"}");
    let data: Vec<u8> = (0..6 * 32).map(|i| (i * 29 + 3) as u8).collect();
    let exponents: Vec<u8> = (0..12).map(|i| 120 + i).collect();
    for expert in 0..4 {
        let name = format!("model.layers.1.mlp.experts.{expert}.gate_proj.weight");
        let tensor = model.tensor(&name);
        tensor.name = format!("{name}{nibbles}");
        tensor.dtype = Dtype::U8;
        tensor.shape = if blocks { vec![6, 2, 16] } else { vec![6, 32] };
        tensor.data = data.clone();
        let (name, shape, data) = (format!("{name}{scales}"), vec![6, 2], exponents.clone());
        model.tensors.push(TestTensor { name, dtype: Dtype::U8, shape, data });
    }
    let value = |i: usize| {
        let nibble = data[i / 2] >> (i % 2 * 4) & 15;
        let magnitude = E2M1[usize::from(nibble & 7)];
        let sign = if nibble > 7 { -1.0 } else { 1.0 };
        sign * magnitude * power_of_two(exponents[i / 32])
    };
    let expected = (0..6 * 64).map(value).collect();
    (model, expected)
}

#[test]
fn mxfp4_pairs_are_read_under_both_names() {
    for (nibbles, scales, blocks) in [("_packed", "_scale", false), ("_blocks", "_scales", true)] {
        let (model, expected) = model_with_mxfp4_gates(nibbles, scales, blocks);
        let (_directory, files) = open(&model);
        assert!(files.unknown.is_empty(), "{:?}", files.unknown);
        let formats = [WeightFormat::Mxfp4, WeightFormat::Bf16, WeightFormat::Bf16];
        assert_eq!(files.expert_formats(MOE_LAYER), formats);
        assert_eq!(read_expert(&files, MOE_LAYER, EXPERT)[0], expected, "{nibbles}");
        let gate = read(&files, Some(MOE_LAYER), Part::ExpertGate(EXPERT)).expect("reads");
        assert_eq!(gate, expected, "{nibbles}");
    }
}

#[test]
fn mxfp4_pairs_of_other_shapes_are_refused() {
    let pair = "model.layers.1.mlp.experts.0.gate_proj.weight";
    let (whole, _) = model_with_mxfp4_gates("_packed", "_scale", false);
    let mut model = whole.clone();
    model.tensor(&format!("{pair}_scale")).shape = vec![12];
    assert!(refusal(&model).contains("[6, 2]"));
    let mut model = whole.clone();
    model.tensors.retain(|tensor| tensor.name != format!("{pair}_scale"));
    assert!(refusal(&model).contains(&format!("{pair}_scale")));
    let mut model = whole;
    let nibbles = model.tensor(&format!("{pair}_packed"));
    (nibbles.dtype, nibbles.shape) = (Dtype::I32, vec![6, 8]);
    assert!(refusal(&model).contains("[6, 32]"));
}

#[test]
fn columns_are_cut_only_between_groups() {
    // 12 columns in two slices of 6 when they are bf16, not when 128 share a scale.
    let mut model = TestModel::valid();
    assert_eq!(open(&model).1.blueprint.spec.slices, 2);
    model.set(
        "quantization_config",
        "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}",
    );
    let name = "model.layers.0.mlp.down_proj.weight";
    restore(&mut model, name, Dtype::F8_E4M3, (0..16 * 12).map(|i| E4M3[i % 4].0).collect());
    add_scales(&mut model, &format!("{name}_scale_inv"), &[1, 1], &[2.0]);
    let (_directory, files) = open(&model);
    assert_eq!(files.blueprint.spec.slices, 1);
    let down = read(&files, Some(LayerId(0)), Part::DenseDown).expect("reads");
    assert!(down.iter().enumerate().all(|(i, &value)| value == 2.0 * E4M3[i % 4].1));
    // Rows are cut anywhere: a gate in fp8 leaves two slices.
    let mut model = TestModel::valid();
    model.set(
        "quantization_config",
        "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}",
    );
    let name = "model.layers.0.mlp.gate_proj.weight";
    restore(&mut model, name, Dtype::F8_E4M3, (0..16 * 12).map(|i| E4M3[i % 4].0).collect());
    add_scales(&mut model, &format!("{name}_scale_inv"), &[1, 1], &[2.0]);
    let (_directory, files) = open(&model);
    assert_eq!(files.blueprint.spec.slices, 2);
    let gate = read(&files, Some(LayerId(0)), Part::DenseGate).expect("reads");
    assert!(gate.iter().enumerate().all(|(i, &value)| value == 2.0 * E4M3[i % 4].1));
}
