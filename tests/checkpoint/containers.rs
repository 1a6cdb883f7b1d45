//! Colibri containers of hand-made bytes: each format is what the container's page says.

use crate::checkpoint_files::{TestModel, TestTensor, file_bytes, stamped_file_bytes};
use crate::checkpoint_reading::{read, read_expert};
use crate::{EXPERT, MOE_LAYER, open, power_of_two, values};
use millstream::checkpoint::ModelFiles;
use millstream::checkpoint::describe::describe;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::resident_parts;
use millstream_stages::weights::{Part, WeightSource};
use safetensors::Dtype;
use std::path::Path;

const HEAD: &str = "lm_head.weight";
const QUERY: &str = "model.layers.0.self_attn.q_a_proj.weight";

/// Writes a container's configuration and its tensors as shards of so many.
fn write_shards(model: &TestModel, directories: &[&Path], tensors_each: usize) {
    std::fs::write(directories[0].join("config.json"), model.config_text()).expect("written");
    for (shard, tensors) in model.tensors.chunks(tensors_each).enumerate() {
        let directory = directories[shard % directories.len()];
        let path = directory.join(format!("out-{shard:05}.safetensors"));
        std::fs::write(path, file_bytes(tensors)).expect("written");
    }
}

/// Opens a model whose head is stored so, and reads the head.
fn head_of(model: &TestModel) -> (String, Vec<f32>) {
    let (_directory, files) = open(model);
    (files.format(None, Part::Head).to_string(), read(&files, None, Part::Head).expect("reads"))
}

#[test]
fn signed_bytes_with_a_scale_a_row() {
    let mut model = TestModel::container(16);
    let (format, head) = head_of(&model);
    assert_eq!(format, "int8-row");
    let codes = model.tensor(HEAD).data.clone();
    let expected = codes
        .iter()
        .enumerate()
        .map(|(i, &code)| f32::from(code as i8) * (0.01 + (i / 16) as f32 / 64.0));
    assert!(head.into_iter().eq(expected));
}

#[test]
fn nibbles_and_pairs_of_bits_lie_low_first() {
    let mut model = TestModel::container(16);
    // [24, 16]: nibble - 8, two bits - 2.
    let scales: Vec<f32> = (0..24).map(|row| 0.5 + row as f32).collect();
    let nibbles: Vec<u8> = (0..24 * 8).map(|i| (i * 23 + 5) as u8).collect();
    model.store(HEAD, nibbles.clone(), &scales);
    let (format, head) = head_of(&model);
    assert_eq!(format, "int4-row");
    let value = |i: usize| f32::from(nibbles[i / 2] >> (i % 2 * 4) & 15) - 8.0;
    assert!(head.into_iter().eq((0..24 * 16).map(|i| value(i) * scales[i / 16])));

    let bits: Vec<u8> = (0..24 * 4).map(|i| (i * 57 + 9) as u8).collect();
    model.store(HEAD, bits.clone(), &scales);
    let (format, head) = head_of(&model);
    assert_eq!(format, "int2-row");
    let value = |i: usize| f32::from(bits[i / 4] >> (i % 4 * 2) & 3) - 2.0;
    assert!(head.into_iter().eq((0..24 * 16).map(|i| value(i) * scales[i / 16])));
}

#[test]
fn groups_and_planes_have_a_scale_each() {
    // 320 columns: five groups of 64.
    let mut model = TestModel::container(320);
    let scales: Vec<f32> = (0..24 * 5).map(|group| 0.5 + group as f32).collect();
    let nibbles: Vec<u8> = (0..24 * 160).map(|i| (i * 23 + i / 7) as u8).collect();
    model.store(HEAD, nibbles.clone(), &scales);
    let (format, head) = head_of(&model);
    assert_eq!(format, "int4-g64");
    let value = |i: usize| f32::from(nibbles[i / 2] >> (i % 2 * 4) & 15) - 8.0;
    assert!(head.into_iter().eq((0..24 * 320).map(|i| value(i) * scales[i / 64])));

    // 16 bytes of low bits, 8 of high ones.
    let planes: Vec<u8> = (0..24 * 5 * 24).map(|i| (i * 71 + i / 5) as u8).collect();
    model.store(HEAD, planes.clone(), &scales);
    let (format, head) = head_of(&model);
    assert_eq!(format, "int3-g64");
    let value = |i: usize| {
        let (group, k) = (&planes[i / 64 * 24..], i % 64);
        let low = group[k / 4] >> (2 * (k % 4)) & 3;
        let high = group[16 + k / 8] >> (k % 8) & 1;
        f32::from(high << 2 | low) - 4.0
    };
    assert!(head.into_iter().eq((0..24 * 320).map(|i| value(i) * scales[i / 64])));
}

#[test]
fn byte_scales_are_powers_of_two() {
    let mut model = TestModel::container(64);
    let nibbles: Vec<u8> = (0..24 * 32).map(|i| (i * 23 + 5) as u8).collect();
    let exponents: Vec<u8> = (0..48).map(|i| 100 + i).collect();
    model.store_bytes(HEAD, nibbles.clone(), Dtype::U8, exponents.clone());
    let (format, head) = head_of(&model);
    assert_eq!(format, "mxfp4");
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let value = |i: usize| {
        let nibble = nibbles[i / 2] >> (i % 2 * 4) & 15;
        let sign = if nibble > 7 { -1.0 } else { 1.0 };
        sign * magnitudes[usize::from(nibble & 7)] * power_of_two(exponents[i / 32])
    };
    assert!(head.into_iter().eq((0..24 * 64).map(value)));

    // E4M3 0x38 is 1, 0xc0 is -2; one block, scale 2^3, as f32 and as ue8m0.
    let codes: Vec<u8> = (0..24 * 64).map(|i| [0x38, 0xc0][i % 2]).collect();
    let expected: Vec<f32> = (0..24 * 64).map(|i| [8.0, -16.0][i % 2]).collect();
    model.store(HEAD, codes.clone(), &[8.0]);
    assert_eq!(head_of(&model), ("fp8-e4m3-b128".to_string(), expected.clone()));
    model.store_bytes(HEAD, codes, Dtype::F8_E8M0, vec![130]);
    assert_eq!(head_of(&model), ("fp8-e4m3-b128:ue8m0".to_string(), expected));
}

#[test]
fn plain_floats_stay_what_they_are() {
    let mut model = TestModel::container(16);
    let plain = TestModel::valid().tensor(HEAD).clone();
    *model.tensor(HEAD) = plain;
    model.tensors.retain(|tensor| tensor.name != "lm_head.weight.qs");
    let expected = values(&mut model, HEAD);
    assert_eq!(head_of(&model), ("bf16".to_string(), expected));
}

#[test]
fn configuration_of_the_original_says_nothing_of_the_container() {
    let mut model = TestModel::container(16);
    let expected = head_of(&model);
    for scheme in ["{\"quant_method\":\"modelopt\"}", "7"] {
        model.set("quantization_config", scheme);
        assert_eq!(head_of(&model), expected, "{scheme}");
    }
}

#[test]
fn expert_is_one_read_of_weights_and_one_of_scales() {
    let (_directory, files) = open(&TestModel::container(16));
    let extents = files.expert_extents(MOE_LAYER, EXPERT);
    let bytes: Vec<usize> = extents.iter().map(|extent| extent.bytes).collect();
    assert_eq!(bytes, [(16 + 6 + 6) * 4, 3 * 6 * 16], "scales, then down, gate, up");
    let unpacked = read_expert(&files, MOE_LAYER, EXPERT);
    let parts = [Part::ExpertGate(EXPERT), Part::ExpertUp(EXPERT), Part::ExpertDown(EXPERT)];
    for (part, unpacked) in parts.into_iter().zip(unpacked) {
        assert_eq!(read(&files, Some(MOE_LAYER), part).expect("reads"), unpacked, "{part:?}");
    }
    let description = describe(&files);
    assert_eq!(description.expert_stored_bytes_max, 3 * 6 * 16 + 28 * 4);
    // Two slices: gate and up of 3 rows, down of 16, each a block of 16 rows: a line of scales,
    // then one for every 4 columns.
    let slice = 2 * (64 + 4 * 64) + (64 + 64);
    assert_eq!(description.expert_memory_bytes_max, 2 * slice);
}

#[test]
fn shards_in_several_directories_give_the_same_weights() {
    let model = TestModel::container(16);
    let (_whole_directory, whole) = open(&model);
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let paths = directories.each_ref().map(|directory| directory.path());
    write_shards(&model, &paths, 9);
    // Of two files of one name the first directory's counts.
    std::fs::write(paths[2].join("out-00000.safetensors"), b"another").expect("written");
    let further = [paths[1].to_path_buf(), paths[2].to_path_buf()];
    let split = ModelFiles::open_with(paths[0], &further).expect("opens");
    let names: Vec<&str> = (0..split.checkpoint.files().len())
        .map(|file| split.checkpoint.file_name(millstream_stages::ids::FileId(file as u32)))
        .collect();
    assert!(names.len() > 5 && names.is_sorted(), "{names:?}");
    for (layer, part) in resident_parts(&whole.blueprint.spec) {
        assert_eq!(read(&split, layer, part).unwrap(), read(&whole, layer, part).unwrap());
    }
    for layer in [LayerId(1), LayerId(2)] {
        for expert in (0..4).map(ExpertId) {
            assert_eq!(read_expert(&split, layer, expert), read_expert(&whole, layer, expert));
        }
    }
}

#[test]
fn stamp_decides_between_groups_of_the_same_sizes() {
    // 96 columns with two scales a row: 48 + 48, or 64 + 32.
    let mut model = TestModel::container(96);
    let nibbles: Vec<u8> = (0..8 * 48).map(|i| (i * 23 + i / 7) as u8).collect();
    let scales: Vec<f32> = (0..16).map(|group| 0.5 + group as f32).collect();
    model.store(QUERY, nibbles.clone(), &scales);
    for group in [48, 64] {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("config.json"), model.config_text()).expect("written");
        let stamps = format!("{{\"{QUERY}\":\"int4-g{group}\",\"{HEAD}\":\"int8-row\"}}");
        let bytes = stamped_file_bytes(&model.tensors, Some(&stamps));
        std::fs::write(directory.path().join("out-00000.safetensors"), bytes).expect("written");
        let files = ModelFiles::open(directory.path()).unwrap_or_else(|e| panic!("{e}"));
        let layer = Some(LayerId(0));
        assert_eq!(files.format(layer, Part::QueryDown).to_string(), format!("int4-g{group}"));
        let value = |i: usize| {
            let code = f32::from(nibbles[i / 2] >> (i % 2 * 4) & 15) - 8.0;
            code * scales[i / 96 * 2 + i % 96 / group]
        };
        let found = read(&files, layer, Part::QueryDown).expect("reads");
        assert!(found.into_iter().eq((0..8 * 96).map(value)), "groups of {group}");
    }
}

#[test]
fn stamps_of_routed_experts_do_not_count() {
    let model = TestModel::container(16);
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("config.json"), model.config_text()).expect("written");
    let stamps = "{\"model.layers.1.mlp.experts.2.gate_proj.weight\":\"e8-iq3-lattice\"}";
    let bytes = stamped_file_bytes(&model.tensors, Some(stamps));
    std::fs::write(directory.path().join("out-00000.safetensors"), bytes).expect("written");
    let files = ModelFiles::open(directory.path()).expect("opens");
    assert_eq!(files.expert_formats(MOE_LAYER)[0].to_string(), "int8-row");
}

#[test]
fn draft_layer_of_a_container_is_known() {
    let mut model = TestModel::container(16);
    model.set("num_nextn_predict_layers", "1");
    let tensor = model.tensor("model.norm.weight").clone();
    let name = "model.layers.3.eh_proj.weight.qs".to_string();
    model.tensors.push(TestTensor { name, ..tensor });
    assert!(open(&model).1.unknown.is_empty());
}
