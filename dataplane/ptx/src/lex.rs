//! Tokens of PTX text (PTX ISA 4).

use crate::error::{LoadError, Reason};

/// A token. Words of directives and modifiers keep their point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Token<'a> {
    /// An identifier, an opcode or a register, and `_`.
    Word(&'a str),
    /// A directive or a modifier, such as `.global` or `.L2::128B`.
    Dot(&'a str),
    Int(u64),
    /// The bits of `0f3F800000`.
    Single(u32),
    /// The bits of `0d3FF0000000000000`, or of a decimal number with a point.
    Double(u64),
    Text(&'a str),
    Punct(u8),
    End,
}

#[derive(Debug, Clone)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1 }
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error(&self, what: impl Into<String>) -> LoadError {
        LoadError::new(self.line, "", Reason::Syntax(what.into()))
    }

    /// Takes bytes for as long as `more` says.
    fn run(&mut self, more: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.at < self.text.len() && more(self.peek(0)) {
            self.at += 1;
        }
        // What stops a run is ASCII or the end, so is what it takes.
        self.text.get(start..self.at).unwrap_or("")
    }

    fn skip_blanks(&mut self) -> Result<(), LoadError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'/', b'/') => self.skip_line(),
                (b'/', b'*') => {
                    let comment = &self.text.as_bytes()[self.at + 2..];
                    let Some(len) = comment.windows(2).position(|end| end == b"*/") else {
                        return Err(self.error("a comment that does not end"));
                    };
                    self.line += comment[..len].split(|byte| *byte == b'\n').count() as u32 - 1;
                    self.at += len + 4;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Skips what is left of the line.
    pub(crate) fn skip_line(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    }

    /// What stands up to the next blank, such as the number after `.version`.
    pub(crate) fn raw_word(&mut self) -> Result<&'a str, LoadError> {
        self.skip_blanks()?;
        Ok(self.run(|byte| byte.is_ascii_graphic()))
    }

    /// The next token, its line, and where it starts and ends.
    pub(crate) fn next(&mut self) -> Result<(Token<'a>, u32, usize), LoadError> {
        self.skip_blanks()?;
        let (line, start) = (self.line, self.at);
        let token = match self.peek(0) {
            _ if self.at >= self.text.len() => Token::End,
            b'0'..=b'9' => self.number()?,
            b'.' => {
                self.at += 1;
                while in_word(self.peek(0)) || (self.peek(0) == b':' && self.peek(1) == b':') {
                    self.at += if self.peek(0) == b':' { 2 } else { 1 };
                }
                Token::Dot(&self.text[start..self.at])
            }
            b'"' => {
                self.at += 1;
                let text = self.run(|byte| byte != b'"' && byte != b'\n');
                if self.peek(0) != b'"' {
                    return Err(self.error("a string that does not end"));
                }
                self.at += 1;
                Token::Text(text)
            }
            first if in_word(first) || first == b'%' => {
                self.at += 1;
                self.run(in_word);
                Token::Word(&self.text[start..self.at])
            }
            punct @ (b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'<' | b'>' | b',' | b';' | b':' | b'+' | b'-'
            | b'=' | b'!' | b'~' | b'@' | b'|') => {
                self.at += 1;
                Token::Punct(punct)
            }
            other => return Err(self.error(format!("a character {:?} that PTX has no use for", char::from(other)))),
        };
        Ok((token, line, start))
    }

    /// Where the last token ended.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    fn number(&mut self) -> Result<Token<'a>, LoadError> {
        let start = self.at;
        let word = self.run(|byte| byte.is_ascii_alphanumeric());
        let wrong = |lexer: &Self| lexer.error(format!("a number {:?}", &lexer.text[start..lexer.at]));
        let hex = |digits: &str, len| {
            let fits = digits.len() == len && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            fits.then(|| u64::from_str_radix(digits, 16).unwrap_or(0))
        };
        if let Some(digits) = word.strip_prefix("0f").or(word.strip_prefix("0F")) {
            return hex(digits, 8).map(|bits| Token::Single(bits as u32)).ok_or_else(|| wrong(self));
        }
        if let Some(digits) = word.strip_prefix("0d").or(word.strip_prefix("0D")) {
            return hex(digits, 16).map(Token::Double).ok_or_else(|| wrong(self));
        }
        if self.peek(0) == b'.' && self.peek(1).is_ascii_digit() {
            self.at += 1;
            self.run(|byte| byte.is_ascii_alphanumeric());
            if matches!(self.text.as_bytes()[self.at - 1], b'e' | b'E') && matches!(self.peek(0), b'+' | b'-') {
                self.at += 1;
                self.run(|byte| byte.is_ascii_digit());
            }
            let number: Result<f64, _> = self.text[start..self.at].parse();
            return number.map(|number| Token::Double(number.to_bits())).map_err(|_| wrong(self));
        }
        let digits = word.strip_suffix(['U', 'u']).unwrap_or(word);
        let (radix, digits) = match digits.as_bytes() {
            [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
            [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
            [b'0', _, ..] => (8, &digits[1..]),
            _ => (10, digits),
        };
        u64::from_str_radix(digits, radix).map(Token::Int).map_err(|_| wrong(self))
    }
}
