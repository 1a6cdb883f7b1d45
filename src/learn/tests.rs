//! The file by itself: what is kept, what a kill leaves, what is passed over.

use super::*;

const EXPERTS: [usize; 3] = [0, 4, 2];

fn model() -> tempfile::TempDir {
    let model = tempfile::tempdir().expect("a directory");
    std::fs::write(model.path().join("config.json"), "{}").expect("written");
    std::fs::write(model.path().join("model.safetensors"), "weights").expect("written");
    model
}

fn file_of(model: &tempfile::TempDir) -> UseFile {
    let file = UseFile::of_model_in(model.path(), None).expect("a model");
    file.expect("a place that can be written")
}

fn uses() -> Uses {
    vec![vec![], vec![5, 0, 7, 1], vec![2, 3]]
}

#[test]
fn what_is_saved_is_loaded() {
    let model = model();
    let file = file_of(&model);
    assert_eq!(file.load(&EXPERTS), (vec![vec![], vec![0; 4], vec![0; 2]], None));
    file.save(uses()).expect("saved");
    assert_eq!(file.load(&EXPERTS), (uses(), None));
    let names: Vec<_> = std::fs::read_dir(model.path()).expect("a directory").collect();
    assert_eq!(names.len(), 3, "nothing else is left: {names:?}");
}

#[test]
fn a_kill_before_the_rename_leaves_the_old_file() {
    let model = model();
    let file = file_of(&model);
    file.save(uses()).expect("saved");
    let beside = file.write_beside(vec![vec![], vec![9; 4], vec![9; 2]]).expect("written");
    std::fs::write(&beside, "half of").expect("cut off");
    assert_eq!(file.load(&EXPERTS), (uses(), None));
    file.save(vec![vec![], vec![9; 4], vec![9; 2]]).expect("the next session saves over it");
    assert_eq!(file.load(&EXPERTS).0[1], [9; 4]);
}

#[test]
fn damaged_and_foreign_files_are_passed_over_with_a_warning() {
    let model = model();
    let file = file_of(&model);
    file.save(uses()).expect("saved");
    let text = std::fs::read_to_string(file.path()).expect("the file");
    let other_model = text.replace(&file.fingerprint, "0123456789abcdef0123456789abcdef");
    let other_shape = text.replace("[2,3]", "[2,3,4]");
    let other_format = text.replace("uses 1", "uses 2");
    for damaged in [&text[..text.len() / 2], "", "{}", &other_model, &other_shape, &other_format] {
        std::fs::write(file.path(), damaged).expect("written");
        let (uses, warning) = file.load(&EXPERTS);
        assert_eq!(uses, vec![vec![], vec![0; 4], vec![0; 2]]);
        assert!(warning.is_some_and(|warning| warning.contains("passed over")), "{damaged}");
    }
}

#[test]
fn another_model_has_another_fingerprint() {
    let model = model();
    let before = fingerprint(model.path()).expect("a model");
    std::fs::write(model.path().join("model.safetensors"), "more weights").expect("written");
    assert_ne!(fingerprint(model.path()).expect("a model"), before);
}

#[test]
fn uses_fade_as_they_grow() {
    let model = model();
    let file = file_of(&model);
    file.save(vec![vec![], vec![u32::MAX, 8, 0, USES_MAX], vec![1, USES_MAX]]).expect("saved");
    let (uses, _) = file.load(&EXPERTS);
    assert!(uses[1][0] <= USES_MAX && uses[1][0] > USES_MAX / 2, "{uses:?}");
    assert_eq!(uses[2], [1, USES_MAX], "layers fade by themselves");
}

#[test]
fn what_colibri_left_is_taken_until_there_is_a_file_of_ours() {
    let model = model();
    std::fs::write(model.path().join(COLIBRI_FILE_NAME), "-1 3 4\n1 2 9\n").expect("written");
    let file = file_of(&model);
    assert_eq!(file.load(&EXPERTS).0[1], [0, 0, 9, 0]);
    file.save(uses()).expect("saved");
    assert_eq!(file.load(&EXPERTS).0, uses());
}

#[test]
fn the_state_directory_serves_where_the_model_is_read_only() {
    let state = state_directory(Some("/state".into()), Some("/home/me".into()));
    assert_eq!(state, Some("/state/millstream".into()));
    let home = state_directory(Some("relative".into()), Some("/home/me".into()));
    assert_eq!(home, Some("/home/me/.local/state/millstream".into()));
    assert_eq!(state_directory(None, None), None);

    let (model, state) = (model(), tempfile::tempdir().expect("a directory"));
    let state = state.path().join("millstream");
    let mut file = file_of(&model);
    // Root may write anywhere, so the choice itself can't be provoked by permissions here.
    file.path = state.join(format!("uses-{}.json", file.fingerprint));
    file.save(uses()).expect("the directory is made");
    assert_eq!(file.load(&EXPERTS), (uses(), None));
}
