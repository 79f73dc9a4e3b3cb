//! Variables and their initialisers.

use super::{Parsed, Parser};
use crate::{
    error::{LoadError, Reason},
    lex::Token,
    module::{Initial, Linkage, Variable},
    types::Space,
};

/// Most dimensions of an array.
const DIMENSIONS_MAX: usize = 8;
/// Most bytes of a variable.
const BYTES_MAX: u64 = 64 << 20;

impl<'a> Parser<'a> {
    /// One declaration, which may name several variables; ends behind its semicolon.
    pub(super) fn variables(&mut self, linkage: Linkage, into: &mut Vec<Variable<'a>>) -> Parsed<()> {
        let (mut space, mut ty, mut align, mut lanes) = (Space::Global, None, None, 1);
        while let Token::Dot(word) = self.token {
            self.next()?;
            match word {
                ".align" => align = Some(self.alignment()?),
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                ".attribute" => return Err(self.unsupported(".attribute of a variable")),
                _ => match Space::parse(word) {
                    Some(found) => space = found,
                    None => ty = Some(self.memory_type(word)?),
                },
            }
        }
        let ty = ty.ok_or_else(|| self.expected("a type"))?;
        loop {
            let line = self.line;
            let name = self.word("the name of a variable")?;
            let wrong = |what: String| LoadError::new(line, name, Reason::TooLarge(what));
            let mut dimensions = Vec::new();
            while self.take(b'[')? {
                let length = if self.token == Token::Punct(b']') { 0 } else { self.int()? };
                self.expect(b']')?;
                if dimensions.len() == DIMENSIONS_MAX {
                    return Err(wrong(format!("an array of more than {DIMENSIONS_MAX} dimensions")));
                }
                dimensions.push(length);
            }
            if lanes > 1 {
                dimensions.push(lanes);
            }
            let mut init = Vec::new();
            if self.take(b'=')? {
                self.initialiser(&dimensions, &mut init)?;
                if dimensions.first() == Some(&0) {
                    // As long as its initialiser.
                    let inner = dimensions[1..].iter().fold(1_u64, |all, one| all.saturating_mul(*one)).max(1);
                    dimensions[0] = init.last().map_or(0, |(index, _)| index / inner + 1);
                }
            }
            let elements = dimensions.iter().fold(1_u64, |all, one| all.saturating_mul(*one));
            let bytes = elements.saturating_mul(ty.bytes());
            if bytes > BYTES_MAX {
                return Err(wrong(format!("a variable of {bytes} bytes; at most {BYTES_MAX} are taken")));
            }
            if init.last().is_some_and(|(index, _)| *index >= elements) {
                return Err(self.syntax(format!("{name} has more initial values than elements")));
            }
            let align = align.unwrap_or(ty.bytes() * lanes);
            into.push(Variable { name, space, linkage, ty, bytes, align, init, line });
            if !self.take(b',')? {
                return self.expect(b';');
            }
        }
    }

    /// `= value` or `= {..}`; inner braces that are short leave zeros.
    fn initialiser(&mut self, dimensions: &[u64], init: &mut Vec<(u64, Initial<'a>)>) -> Parsed<()> {
        let (mut index, mut depth) = (0_u64, 0);
        loop {
            if self.take(b'{')? {
                depth += 1;
                if depth > dimensions.len() {
                    return Err(self.syntax("more braces than dimensions"));
                }
                if self.token != Token::Punct(b'}') {
                    continue;
                }
            } else {
                init.push((index, self.initial()?));
                index += 1;
            }
            while depth > 0 && self.take(b'}')? {
                depth -= 1;
                let inner = dimensions[depth + 1..].iter().fold(1_u64, |all, one| all.saturating_mul(*one)).max(1);
                let whole = if depth == 0 { 1 } else { inner.saturating_mul(dimensions[depth].max(1)) };
                index = index.checked_next_multiple_of(whole).unwrap_or(u64::MAX >> 1);
            }
            if depth == 0 {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn initial(&mut self) -> Parsed<Initial<'a>> {
        let negative = self.take(b'-')?;
        match self.token {
            Token::Word("generic") => {
                self.next()?;
                self.expect(b'(')?;
                let name = self.word("the name of a variable")?;
                self.expect(b')')?;
                Ok(Initial::Name(name, self.offset()?))
            }
            Token::Word(name) => {
                self.next()?;
                Ok(Initial::Name(name, self.offset()?))
            }
            Token::Single(bits) => self.next().map(|_| Initial::Single(bits ^ u32::from(negative) << 31)),
            Token::Double(bits) => self.next().map(|_| Initial::Double(bits ^ u64::from(negative) << 63)),
            _ => {
                let value = self.int()?;
                if self.token == Token::Punct(b'(') {
                    return Err(self.unsupported("bytes of an address in an initialiser"));
                }
                Ok(Initial::Int(if negative { value.wrapping_neg() } else { value }))
            }
        }
    }

    /// `+4`, `-4`, `+-4` or nothing.
    pub(super) fn offset(&mut self) -> Parsed<u64> {
        let plus = self.take(b'+')?;
        let minus = self.take(b'-')?;
        if !plus && !minus {
            return Ok(0);
        }
        let value = self.int()?;
        Ok(if minus { value.wrapping_neg() } else { value })
    }
}
