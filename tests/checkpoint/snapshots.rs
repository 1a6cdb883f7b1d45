//! Hugging Face snapshots: tensors, experts, shards, strangers, configuration, description.

use crate::checkpoint_files::{TestModel, TestTensor, file_bytes};
use crate::checkpoint_reading::{read, read_expert};
use crate::{EXPERT, EXPERT_PREFIX, MOE_LAYER, open, values};
use millstream::checkpoint::ModelFiles;
use millstream::checkpoint::describe::describe;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::resident_parts;
use millstream_stages::spec::{AttentionSpec, IndexerUse};
use millstream_stages::weights::{Part, WeightSource};

#[test]
fn every_resident_tensor_reads_as_it_was_written() {
    let mut model = TestModel::valid();
    let (_directory, files) = open(&model);
    assert_eq!(files.blueprint.spec.slices, 2, "pieces are parts of tensors");
    for (layer, part) in resident_parts(&files.blueprint.spec) {
        let name = (files.blueprint.tensor_name)(layer, part);
        let found = read(&files, layer, part).expect("reads");
        assert_eq!(found, values(&mut model, &name), "{name}");
    }
}

#[test]
fn expert_unpacks_to_what_was_written() {
    let mut model = TestModel::valid();
    let (_directory, files) = open(&model);
    let unpacked = read_expert(&files, MOE_LAYER, EXPERT);
    let parts = [Part::ExpertGate(EXPERT), Part::ExpertUp(EXPERT), Part::ExpertDown(EXPERT)];
    for (index, name) in
        ["gate_proj.weight", "up_proj.weight", "down_proj.weight"].iter().enumerate()
    {
        let written = values(&mut model, &format!("{EXPERT_PREFIX}{name}"));
        assert_eq!(unpacked[index], written, "{name}");
        assert_eq!(read(&files, Some(MOE_LAYER), parts[index]).expect("reads"), written);
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
        assert_eq!(read(&split, layer, part).unwrap(), read(&whole, layer, part).unwrap());
    }
    for layer in [LayerId(1), LayerId(2)] {
        for expert in (0..4).map(ExpertId) {
            assert_eq!(read_expert(&split, layer, expert), read_expert(&whole, layer, expert));
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
        .filter_map(|(layer, part)| read(&files, layer, part).err())
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
        .map(|layer| match &layer.attention {
            AttentionSpec::Gqa(_) => '-',
            AttentionSpec::Mla(mla) => match mla.indexer {
                IndexerUse::Dense => 'D',
                IndexerUse::Full(_) => 'F',
                IndexerUse::Shared => 'S',
            },
        })
        .collect()
}

#[test]
fn indexer_schedule_comes_from_types_pattern_or_formula() {
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[], "FFS"),
        (&[("indexer_types", "[\"full\",\"shared\",\"shared\"]")], "FSS"),
        (&[("index_topk_pattern", "\"FSS\""), ("indexer_types", "null")], "FSS"),
        (&[("index_topk", "0")], "DDD"),
        (&[("index_topk", "0"), ("index_n_heads", "0"), ("index_head_dim", "0")], "DDD"),
        (&[("index_topk", "null")], "DDD"),
    ];
    for (fields, expected) in cases {
        let mut model = TestModel::valid();
        fields.iter().for_each(|(field, value)| model.set(field, value));
        assert_eq!(indexers(&open(&model).1), expected, "{fields:?}");
    }
    for mut model in [TestModel::valid(), TestModel::container(16)] {
        model.tensors.retain(|tensor| !tensor.name.contains("indexer"));
        assert_eq!(indexers(&open(&model).1), "DDD", "no indexer weights");
    }
}

#[test]
fn context_that_the_configuration_leaves_out_is_that_of_the_family() {
    let mut model = TestModel::valid();
    model.set("max_position_embeddings", "null");
    assert_eq!(open(&model).1.blueprint.spec.context_max, 202_752);
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
    assert_eq!(description.resident_memory_bytes, description.resident_stored_bytes);
    assert_eq!(description.weights * 2, bytes);
    assert_eq!(description.formats[0].format, "bf16");
    assert_eq!(description.formats[0].tensors, model.tensors.len());
    assert_eq!(description.expert_stored_bytes_max, 3 * 6 * 16 * 2);
    // Two slices of three matrices, each in multiples of 64 bytes.
    assert_eq!(description.expert_memory_bytes_max, 2 * 3 * 128);
    assert_eq!(description.expert_bytes_per_token, 2 * 2 * 3 * 6 * 16 * 2);
    assert!(description.to_string().contains("glm_moe_dsa"));
    assert!(serde_json::to_string(&description).expect("JSON").contains("weights_per_token"));
}
