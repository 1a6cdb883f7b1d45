//! Ids that can't belong to the model are refused, with the right command.
//!
//! Token ids carry no name of their model. Ids beyond the vocabulary can't run at all. A long list
//! of very small ids for a model with a real vocabulary was almost surely made for a tiny test
//! model: it would run and mean nothing, so it is refused unless `--force` is given.

/// A vocabulary of this size or more belongs to a real tokenizer.
const REAL_VOCABULARY_MIN: usize = 32_000;
/// Test models have vocabularies up to this.
const TINY_VOCABULARY_MAX: u32 = 1024;
/// Shorter lists say nothing.
const IDS_MIN: usize = 16;

/// Checks the ids of a flag against the model's vocabulary.
///
/// # Errors
/// With a message that says what is wrong and what to run.
pub fn check_ids(flag: &str, ids: &[u32], vocabulary: usize, force: bool) -> Result<(), String> {
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
        return Err(format!(
            "{flag}: id {id} isn't in this model's vocabulary of {vocabulary}; these ids were made \
             for another model. Run them with that one:\n  millstream run -m ITS_DIRECTORY {flag} ...\n\
             or give ids below {vocabulary}"
        ));
    }
    let all_tiny = ids.len() >= IDS_MIN && ids.iter().all(|&id| id < TINY_VOCABULARY_MAX);
    if vocabulary >= REAL_VOCABULARY_MIN && all_tiny && !force {
        return Err(format!(
            "{flag}: all {} ids are below {TINY_VOCABULARY_MAX}, and this model's vocabulary has \
             {vocabulary}; they look like the ids of a small test model and would mean nothing here. \
             Run them with that model:\n  millstream run -m ITS_DIRECTORY {flag} ...\nor, if they \
             are meant, add --force",
            ids.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_tiny_model_run_on_a_tiny_model() {
        assert_eq!(check_ids("--forced", &[5; 40], 600, false), Ok(()));
    }

    #[test]
    fn ids_of_a_tiny_model_are_refused_on_a_real_one_unless_forced() {
        let ids: Vec<u32> = (0..40).collect();
        let message = check_ids("--forced", &ids, 154_880, false).unwrap_err();
        assert!(message.contains("--force") && message.contains("millstream run -m"), "{message}");
        assert_eq!(check_ids("--forced", &ids, 154_880, true), Ok(()));
        assert_eq!(check_ids("--forced", &ids[..3], 154_880, false), Ok(()));
    }

    #[test]
    fn ids_beyond_the_vocabulary_are_refused_whatever_is_forced() {
        let message = check_ids("--prompt-ids", &[1, 600], 600, true).unwrap_err();
        assert!(message.contains("id 600") && message.contains("below 600"), "{message}");
    }
}
