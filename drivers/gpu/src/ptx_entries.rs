//! The kernels of a PTX text and their parameters, whatever its instructions are: drivers before CUDA 12.4 do not tell.

use crate::session::KernelFacts;

/// The words and signs of a text, without comments and strings.
fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.');
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else if is_word(first) {
            let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(&rest[..len]);
            len
        } else {
            if !first.is_whitespace() {
                tokens.push(&rest[..first.len_utf8()]);
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

fn bytes_of(kind: &str) -> Option<u32> {
    let bits = kind.strip_prefix('.')?.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    bits.parse().ok().filter(|bits| [8, 16, 32, 64, 128].contains(bits)).map(|bits: u32| bits / 8)
}

/// Where a parameter ends, and how it is aligned: `.param .align 8 .b8 name[24]`, `.param .u64 .ptr .global .align 1 name`.
fn parameter(words: &[&str]) -> Option<(u32, u32)> {
    let kind = words.iter().find_map(|word| bytes_of(word))?;
    let value = |after: &str| {
        let at = words.iter().position(|word| *word == after)?;
        words.get(at + 1)?.parse::<u32>().ok()
    };
    let count = if words.contains(&"[") { value("[")? } else { 1 };
    // The alignment of what a pointer leads to stands behind `.ptr`.
    let own = words.iter().position(|word| *word == ".ptr").unwrap_or(words.len());
    let align = words[..own].contains(&".align").then(|| value(".align")).map_or(Some(kind), |align| align)?;
    Some((kind.checked_mul(count)?, align)).filter(|(_, align)| align.is_power_of_two())
}

/// The kernels that the text defines; `None` if the parameters of one are not understood.
pub(crate) fn entries(text: &str) -> Option<Vec<KernelFacts>> {
    let tokens = tokens(text);
    let mut kernels = Vec::new();
    let mut rest = &tokens[..];
    while let Some(at) = rest.iter().position(|token| *token == ".entry") {
        rest = &rest[at + 1..];
        let name = *rest.first()?;
        let (mut parameters, mut end) = (Vec::new(), 0_u32);
        if rest.get(1) == Some(&"(") {
            let close = rest.iter().position(|token| *token == ")")?;
            for words in rest[2..close].split(|token| *token == ",").filter(|words| !words.is_empty()) {
                let (bytes, align) = parameter(words)?;
                let offset = end.checked_next_multiple_of(align)?;
                end = offset.checked_add(bytes)?;
                parameters.push((offset, bytes));
            }
            rest = &rest[close..];
        }
        kernels.push(KernelFacts { name: name.to_owned(), parameters });
    }
    Some(kernels)
}
