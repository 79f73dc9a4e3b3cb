//! The examples of docs/cuda-q.md: each is checked with the files that stand before it, and the last one decodes.

use std::fs;

use super::check;
use crate::common;

/// The fenced blocks of a page: the file that the line before names, the language and the text.
fn blocks(page: &str) -> Vec<(String, String, String)> {
    let mut blocks = Vec::new();
    let (mut before, mut lines) = ("", page.lines());
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: String = lines.by_ref().take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect();
            let file = before.strip_prefix('`').and_then(|name| name.strip_suffix("`:")).unwrap_or_default();
            blocks.push((file.to_owned(), language.to_owned(), text));
        } else if !line.is_empty() {
            before = line;
        }
    }
    blocks
}

#[test]
fn examples_for_users_of_cuda_q_are_valid_and_the_last_decodes_as_it_says() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cuda-q.md")).unwrap();
    let blocks = blocks(&page);
    let folder = tempfile::tempdir().unwrap();
    let mut last = String::new();
    let mut checked = 0;
    for (file, language, text) in &blocks {
        match language.as_str() {
            "toml" => {
                let output = check(&folder, text);
                assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{text}");
                assert_eq!(output.status.code(), Some(0), "{text}");
                last = text.replace("127.0.0.1:4700", "127.0.0.1:0");
                checked += 1;
            }
            "text" => fs::write(folder.path().join(file), text).unwrap(),
            _ => {}
        }
    }
    assert_eq!(checked, 3);

    let files: Vec<_> = blocks.iter().filter(|(_, language, _)| language == "text").collect();
    let files: Vec<_> = files.iter().map(|(file, _, text)| (file.as_str(), text.as_str())).collect();
    let berth = common::Berth::start_with(&last, &files);
    let client = berth.client("decoding");
    let word = |value: u64| value.to_le_bytes();
    let measurements = [&word(0)[..], &word(0), &word(0), &word(4), &[0b0001]].concat();
    assert_eq!(client.call(common::ENQUEUE_SYNDROMES, &measurements).status, 0);
    let corrections = client.call(common::GET_CORRECTIONS, &[&word(0)[..], &word(1), &[0]].concat());
    assert_eq!((corrections.status, corrections.result), (0, vec![1]));
}
