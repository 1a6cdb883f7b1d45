//! Requests as callers make them: ends, refusals, company, and files that fail under way.

use crate::support::data;
use millstream::engine::{
    Engine, EngineError, Finish, MemoryBudget, Model, Options, Request, Setup,
};
use std::ops::ControlFlow;
use std::path::Path;

fn tiny() -> std::path::PathBuf {
    data().join("tiny/glm-dsa")
}

fn start(options: &Options) -> Engine {
    Engine::start(Model::open(&tiny()).expect("the model opens"), options).expect("it starts")
}

fn generate(engine: &Engine, request: &Request) -> Result<millstream::engine::Answer, EngineError> {
    engine.generate(request, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn breaking_off_cancels_at_the_next_token() {
    let engine = start(&Options::default());
    let mut heard = 0;
    let answer = engine.generate(&Request::greedy(vec![5, 17, 9], 500), &mut |_| {
        heard += 1;
        if heard == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let answer = answer.expect("a cancelled answer is an answer");
    assert_eq!(answer.finish, Finish::Cancelled);
    assert!(answer.answer_ids.len() < 500, "{} tokens", answer.answer_ids.len());
    assert!(generate(&engine, &Request::greedy(vec![5], 2)).is_ok(), "the engine lives on");
}

#[test]
fn stop_ids_length_and_full_context_end_an_answer() {
    let engine = start(&Options { context: Some(12), ..Options::default() });
    let plain = generate(&engine, &Request::greedy(vec![5, 17, 9], 6)).expect("it runs");
    assert_eq!((plain.finish, plain.answer_ids.len()), (Finish::Length, 6));
    let stop_ids = vec![plain.answer_ids[2]];
    let first = plain.answer_ids.iter().position(|id| stop_ids.contains(id)).expect("there");
    let request = Request { stop_ids, ..Request::greedy(vec![5, 17, 9], 6) };
    let stopped = generate(&engine, &request).expect("it runs");
    assert_eq!(stopped.finish, Finish::Stop);
    assert_eq!(stopped.answer_ids, plain.answer_ids[..=first]);
    let full = generate(&engine, &Request::greedy(vec![5, 17, 9], 100)).expect("it runs");
    assert_eq!((full.finish, full.answer_ids.len()), (Finish::ContextFull, 9));
}

#[test]
fn impossible_requests_are_refused_by_name() {
    let engine = start(&Options { context: Some(12), ..Options::default() });
    let refused = |request: Request| match generate(&engine, &request) {
        Err(error) => error.to_string(),
        Ok(answer) => panic!("answered {answer:?}"),
    };
    assert!(refused(Request::greedy(vec![], 5)).contains("no tokens"));
    assert!(refused(Request::greedy(vec![640], 5)).contains("640"));
    assert!(refused(Request::greedy(vec![1; 12], 5)).contains("--context"));
    let traced = Request { keep_trace: true, ..Request::greedy(vec![1], 1) };
    assert!(refused(traced).contains("--trace"));
    let forced = Request { forced: Some(vec![9999]), ..Request::greedy(vec![1], 1) };
    assert!(refused(forced).contains("forced"));
}

#[test]
fn too_little_memory_is_refused_with_a_table() {
    let options = Options { memory: Some(MemoryBudget::Bytes(1 << 20)), ..Options::default() };
    let model = Model::open(&tiny()).expect("the model opens");
    let Err(error) = Engine::start(model, &options) else { panic!("it starts in 1 MiB") };
    let text = error.to_string();
    for word in ["resident weights", "expert slots", "KV", "allowed", "raise --memory"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn memory_that_the_system_refuses_is_an_error_and_no_abort() {
    let mut model = Model::open(&tiny()).expect("the model opens");
    model.spec.context_max = 1 << 44;
    let options = Options {
        context: Some(1 << 44),
        memory: Some(MemoryBudget::Bytes(u64::MAX)),
        ..Options::default()
    };
    let Err(error) = Engine::start(model, &options) else { panic!("2^44 positions fit") };
    let text = error.to_string();
    assert!(text.contains("KV") && text.contains("--context"), "{text}");
}

#[test]
fn memory_budget_decides_the_slots() {
    let model = Model::open(&tiny()).expect("the model opens");
    let all = Setup::new(&model, &Options::default()).expect("it fits");
    assert!(all.memory.slots.iter().all(|&slots| slots == 0 || slots == 24), "{:?}", all.memory);
    assert!(all.memory.slots.contains(&24), "all experts where there is room");
    // Experts of this model are far smaller than a huge page: whole pages of them go.
    let memory = |budget: u64| {
        let options = Options { memory: Some(MemoryBudget::Bytes(budget)), ..Options::default() };
        Setup::new(&model, &options).map(|setup| setup.memory)
    };
    let least = all.memory.total() - all.memory.bytes_of("expert slots");
    let some = memory(least).expect("one slot a layer lies beside the resident weights");
    assert!(some.total() <= least, "{some}");
    assert!(some.slots.iter().all(|&slots| slots <= 24), "{some}");
    let Err(EngineError::Memory { table }) = memory(least / 2) else { panic!("half is enough") };
    assert!(table.prefill_chunk < table.prefill_chunk_asked, "buffers are made smaller first");
}

#[test]
fn prompts_are_read_in_smaller_chunks_before_a_budget_is_refused() {
    let model = Model::open(&tiny()).expect("the model opens");
    let memory = |chunk: usize, budget: Option<u64>| {
        let memory = budget.map(MemoryBudget::Bytes);
        let options = Options { memory, prefill_chunk: chunk, ..Options::default() };
        Setup::new(&model, &options).expect("it fits").memory
    };
    let small = memory(64, None).total();
    assert!(memory(1024, None).total() > small);
    let fitted = memory(1024, Some(small));
    assert!(fitted.prefill_chunk >= 64 && fitted.prefill_chunk < 1024, "{fitted}");
    assert!(fitted.total() <= small && fitted.warnings()[0].contains("instead of 1024"));
}

#[test]
fn more_requests_than_places_wait_and_all_are_answered_alike() {
    let options = Options { sequences_max: 2, waves_max: 2, ..Options::default() };
    let engine = start(&options);
    let request = |i: u32| Request::greedy(vec![5 + i, 17, 9], 7);
    let requests: Vec<Request> = (0..6).map(request).collect();
    let together = engine.generate_all(&requests).expect("they can be met");
    for (request, answer) in requests.iter().zip(together) {
        let alone = generate(&engine, request).expect("it runs");
        assert_eq!(answer.expect("it runs").answer_ids, alone.answer_ids);
    }
}

/// A copy of the model that may be damaged.
fn copy(into: &Path) {
    for entry in std::fs::read_dir(tiny()).expect("the model's directory") {
        let entry = entry.expect("a directory entry");
        if !entry.file_name().to_string_lossy().starts_with("ref") {
            std::fs::copy(entry.path(), into.join(entry.file_name())).expect("copied");
        }
    }
}

#[test]
fn truncated_file_ends_its_sequences_and_no_others() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    copy(directory.path());
    let model = Model::open(directory.path()).expect("the model opens");
    let options = Options { experts_per_layer: Some(4), ..Options::default() };
    let engine = Engine::start(model, &options).expect("it starts");
    let shard = "model-00003-of-00003.safetensors";
    let file = directory.path().join(shard);
    let whole = std::fs::read(&file).expect("read");
    let open = std::fs::OpenOptions::new().write(true).open(&file).expect("opened");
    open.set_len(4096).expect("truncated");
    let request = Request::greedy(vec![5, 17, 9], 8);
    let Err(error) = generate(&engine, &request) else { panic!("experts of a truncated file") };
    let text = error.to_string();
    for word in ["layer", "expert", "read 0 of", "offset", shard, "truncated"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    std::os::unix::fs::FileExt::write_all_at(&open, &whole, 0).expect("mended");
    let mended = generate(&engine, &request).expect("the engine lives on");
    let reference = generate(&start(&Options::default()), &request).expect("it runs");
    assert_eq!(mended.answer_ids, reference.answer_ids);
}
