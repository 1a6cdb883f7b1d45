//! Tokenizers of GGUF files give the ids that the models' own tokenizers give.

use crate::writer::{Writer, Written};
use millstream::checkpoint::gguf::pretokenizers::PRE_TOKENIZERS;
use millstream::text::{ChatTemplate, Message, Tokenizer, stop_ids};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

/// SmolLM2's vocabulary as converters write it into GGUF.
fn smollm2() -> Writer {
    let directory = data("smollm2-tokenizer");
    let tokenizer = json(&directory.join("tokenizer.json"));
    let settings = json(&directory.join("tokenizer_config.json"));
    let vocabulary = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens = vec![String::new(); vocabulary.len()];
    for (token, id) in vocabulary {
        tokens[id.as_u64().expect("an id") as usize] = token.clone();
    }
    let mut types = vec![1; tokens.len()];
    for added in tokenizer["added_tokens"].as_array().expect("a list") {
        types[added["id"].as_u64().expect("an id") as usize] = 3;
    }
    let merge =
        |merge: &Value| format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap());
    let merges = tokenizer["model"]["merges"].as_array().expect("a list").iter().map(merge);
    let template = settings["chat_template"].as_str().expect("a text").to_owned();
    Writer::new(vec![
        ("general.architecture", Written::Text("llama".into())),
        ("tokenizer.ggml.model", Written::Text("gpt2".into())),
        ("tokenizer.ggml.pre", Written::Text("smollm".into())),
        ("tokenizer.ggml.tokens", Written::Texts(tokens)),
        ("tokenizer.ggml.token_type", Written::I32s(types)),
        ("tokenizer.ggml.merges", Written::Texts(merges.collect())),
        ("tokenizer.ggml.bos_token_id", Written::U32(1)),
        ("tokenizer.ggml.eos_token_id", Written::U32(2)),
        ("tokenizer.ggml.add_bos_token", Written::Bool(false)),
        ("tokenizer.chat_template", Written::Text(template)),
    ])
}

fn written(writer: &Writer) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, writer.bytes()).expect("written");
    (directory, path)
}

fn ids_equal_the_reference(path: &Path) {
    let tokenizer = Tokenizer::open(path).expect("opens").expect("it has one");
    let cases = json(&data("smollm2-tokenizer").join("tokenizer_cases.json"));
    let cases = cases["cases"].as_array().expect("a list");
    assert!(cases.len() > 50);
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        let id = |id: &Value| id.as_u64().expect("an id") as u32;
        let ids: Vec<u32> = case["ids"].as_array().expect("a list").iter().map(id).collect();
        assert_eq!(tokenizer.encode(text, true).expect("encodes"), ids, "{text:?}");
        let back = tokenizer.decode(&ids, false).expect("decodes");
        assert_eq!(back == text, case["round_trip"] == true, "{text:?} came back {back:?}");
    }
}

#[test]
fn written_vocabulary_gives_the_reference_ids() {
    let (_directory, path) = written(&smollm2());
    ids_equal_the_reference(&path);
}

#[test]
fn published_file_gives_the_reference_ids() {
    let Some(path) = std::env::var_os("MILLSTREAM_SMOLLM2_GGUF") else {
        println!("not run: MILLSTREAM_SMOLLM2_GGUF names no SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    ids_equal_the_reference(Path::new(&path));
}

#[test]
fn template_and_end_tokens_come_from_the_file() {
    let (_directory, path) = written(&smollm2());
    let template = ChatTemplate::open(&path).expect("opens").expect("it has one");
    let own = ChatTemplate::open(&data("smollm2-tokenizer")).expect("opens").expect("it has one");
    let messages = [Message::new("user", "Hi")];
    let text = template.render(&messages, true).expect("renders");
    assert_eq!(text, own.render(&messages, true).expect("renders"));
    let tokenizer = Tokenizer::open(&path).expect("opens").expect("it has one");
    // config.json can't be made of a file without tensors: only the tokenizer is asked.
    let error = stop_ids(&path, Some(&tokenizer)).unwrap_err().to_string();
    assert!(error.contains("token_embd.weight"), "{error}");
}

#[test]
fn token_before_the_text_comes_where_the_file_says_so() {
    let mut writer = smollm2();
    writer.metadata.retain(|(key, _)| key != "tokenizer.ggml.add_bos_token");
    let first = |writer: &Writer| {
        let (_directory, path) = written(writer);
        let tokenizer = Tokenizer::open(&path).expect("opens").expect("it has one");
        tokenizer.encode("Hi", true).expect("encodes")[0]
    };
    assert_ne!(first(&writer), 1);
    writer.metadata.push(("tokenizer.ggml.add_bos_token".into(), Written::Bool(true)));
    assert_eq!(first(&writer), 1);
}

#[test]
fn every_way_of_cutting_texts_makes_a_tokenizer() {
    let mut writer = smollm2();
    writer.metadata.retain(|(key, _)| key != "tokenizer.ggml.pre");
    for way in PRE_TOKENIZERS {
        let mut writer = writer.clone();
        let name = Written::Text(way.names[0].to_owned());
        writer.metadata.push(("tokenizer.ggml.pre".into(), name));
        let (_directory, path) = written(&writer);
        let tokenizer = Tokenizer::open(&path).expect(way.names[0]).expect("it has one");
        let text = "It's 12345 o'clock, HelloWorld: 天気 naïve\r\n\n  x+=1;\t!";
        let ids = tokenizer.encode(text, false).expect("encodes");
        let back = tokenizer.decode(&ids, false).expect("decodes");
        assert_eq!(back, text, "{}", way.names[0]);
    }
    writer.metadata.push(("tokenizer.ggml.pre".into(), Written::Text("other".into())));
    let (_directory, path) = written(&writer);
    let error = Tokenizer::open(&path).err().expect("refused").to_string();
    assert!(error.contains("\"other\"") && error.contains("qwen2"), "{error}");
}

#[test]
fn broken_vocabularies_are_refused_by_their_keys() {
    for (key, value, word) in [
        ("tokenizer.ggml.model", Written::Text("bert".into()), "\"bert\""),
        ("tokenizer.ggml.tokens", Written::U32(1), "a list of texts"),
        ("tokenizer.ggml.tokens", Written::Texts(vec!["a".into(), "a".into()]), "twice"),
        ("tokenizer.ggml.token_type", Written::I32s(vec![1]), "a list of 1"),
        ("tokenizer.ggml.merges", Written::Texts(vec!["ab".into()]), "a list with \"ab\""),
        ("tokenizer.ggml.merges", Written::Texts(vec!["\u{1}\u{1} zz".into()]), "no tokenizer"),
    ] {
        let mut writer = smollm2();
        writer.metadata.retain(|(name, _)| name != key);
        if key == "tokenizer.ggml.tokens" {
            writer.metadata.retain(|(name, _)| name != "tokenizer.ggml.token_type");
        }
        writer.metadata.push((key.into(), value));
        let (_directory, path) = written(&writer);
        let error = Tokenizer::open(&path).err().expect(key).to_string();
        assert!(error.contains(word) && error.contains("model.gguf"), "{key}: {error}");
    }
}

#[test]
fn merges_by_score_give_the_ids_of_sentence_piece() {
    let directory = data("gguf-tokenizers");
    let path = directory.join("sentence_piece.gguf");
    let tokenizer = Tokenizer::open(&path).expect("opens").expect("it has one");
    let cases = json(&directory.join("sentence_piece.json"));
    let cases = cases.as_array().expect("a list");
    assert!(cases.len() > 20);
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        let id = |id: &Value| id.as_u64().expect("an id") as u32;
        let ids: Vec<u32> = case["ids"].as_array().expect("a list").iter().map(id).collect();
        assert_eq!(tokenizer.encode(text, false).expect("encodes"), ids, "{text:?}");
        // A text begins with the token for that.
        let with_begin: Vec<u32> = [1].into_iter().chain(ids.iter().copied()).collect();
        assert_eq!(tokenizer.encode(text, true).expect("encodes"), with_begin, "{text:?}");
        let back = tokenizer.decode(&ids, false).expect("decodes");
        assert_eq!(back, text.replace('\u{2581}', " "), "{text:?}");
    }
}
