//! Every check can say good and otherwise: on figures made up for it.

use super::*;

/// Nothing is read; the others share 95 % of the time.
fn work_of(stage: StageKind) -> f64 {
    if stage == StageKind::Load { 0.0 } else { 0.95 / 7.0 }
}

fn row() -> SpeedRow {
    SpeedRow {
        test: "tg8".into(),
        kind: TestKind::Answer,
        tokens: 8,
        depth_tokens: 0,
        repetitions: 2,
        tok_s: 100.0,
        tok_s_deviation: 1.0,
        tok_s_samples: vec![99.0, 101.0],
        decode_tok_s: Some(100.0),
        prefill_tok_s: None,
        inter_token_ms_p50: Some(10.0),
        inter_token_ms_p99: Some(11.0),
        hit_share: Some(1.0),
        read_mb_per_token: 0.0,
        disk_read_gb_s: 0.0,
        disk_share: Some(0.0),
        memory_read_gb_s: 20.0,
        memory_share: Some(0.9),
        stall_share: 0.05,
        reading_share: 0.0,
        hint_mb: [0.0; 3],
        stage_work_share: STAGES.iter().map(|(stage, _)| (stage.name(), work_of(*stage))).collect(),
        messages_per_token: 100.0,
        token_hash: "0".into(),
        hashes_agree: true,
    }
}

/// What makes a row worse.
type Fault = fn(&mut SpeedRow);

/// Checks that judge one row, with a change that each must find.
#[test]
fn every_check_of_a_row_finds_its_fault() {
    let faults: [(&str, Fault); 9] = [
        ("phases", |row| row.stall_share = 0.5),
        ("resident", |row| row.read_mb_per_token = 0.1),
        ("repeats", |row| row.hashes_agree = false),
        ("noise", |row| row.tok_s_deviation = 20.0),
        ("stall", |row| row.stall_share = 0.5),
        ("drive", |row| {
            (row.stall_share, row.read_mb_per_token, row.disk_share) = (0.5, 3.0, Some(0.2));
        }),
        ("hits", |row| row.hit_share = Some(0.3)),
        ("guesses", |row| row.hint_mb = [1.0, 2.0, 3.0]),
        ("memory", |row| row.memory_share = Some(0.2)),
    ];
    let rows = CHECKS.iter().filter(|check| matches!(check.look, Look::Row(_)));
    assert_eq!(rows.clone().count(), faults.len(), "a fault for each check");
    for (check, (name, fault)) in rows.zip(faults) {
        assert_eq!(check.name, name);
        let verdict = |row: &SpeedRow, slots: usize| {
            with_facts(slots, |facts| {
                let Look::Row(look) = check.look else { unreachable!("filtered above") };
                look(facts, row).map(|(verdict, _, _)| verdict)
            })
        };
        assert!(matches!(verdict(&row(), 8), None | Some(Verdict::Good)), "{name}");
        let mut worse = row();
        fault(&mut worse);
        // Misses are no fault where there is a slot for every expert.
        let slots = if name == "hits" { 4 } else { 8 };
        let found = verdict(&worse, slots);
        assert!(matches!(found, Some(Verdict::Improvable | Verdict::Broken)), "{name}: {found:?}");
    }
}

#[test]
fn findings_name_their_test_and_their_knob() {
    let mut slow = row();
    slow.stall_share = 0.6;
    slow.stage_work_share.iter_mut().for_each(|(_, share)| *share = 0.05);
    let text = with_facts(8, |facts| {
        let rows = [slow.clone()];
        markdown(&findings(&Facts { rows: &rows, ..*facts }))
    });
    assert!(text.contains("| stall | tg8 | could be better |"), "{text}");
    assert!(text.contains("hand-over"), "{text}");
    assert!(text.contains("| gauges | all | good |"), "{text}");
}

/// Facts of a layer with 8 experts and so many slots.
fn with_facts<R>(slots: usize, look: impl FnOnce(&Facts<'_>) -> R) -> R {
    use crate::engine::{Model, Options, Setup};
    let directory =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/glm-dsa");
    let model = Model::open(&directory).expect("the model opens");
    let options = Options { threads: Some(1), ..Options::default() };
    let setup = Setup::new(&model, &options).expect("it fits");
    let mut memory = setup.memory.clone();
    (memory.slots, memory.experts) = (vec![slots], vec![8]);
    let setting = Setting {
        plan: setup.plan.clone(),
        limits: setup.limits.clone(),
        memory,
        reads: String::new(),
        reads_at_once: 1,
    };
    let measured = Measured {
        gauge_ns_per_message: 60.0,
        gauge_messages_per_token: Some(100.0),
        gauge_share: Some(0.001),
        ..Measured::default()
    };
    let provenance = Provenance { huge_pages: "madvise".into(), ..Provenance::default() };
    look(&Facts { provenance: &provenance, measured: &measured, setting: &setting, rows: &[] })
}
