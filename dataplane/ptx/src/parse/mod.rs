//! PTX text to a [`Module`]. Nothing is allocated by a length that the text states, and nothing recurses.

mod body;
mod variable;

use crate::{
    error::{LoadError, Reason},
    lex::{Lexer, Token},
    module::{Function, Linkage, Module, Param, Signature},
    types::{Space, Type},
};

/// Longest text that is taken, in bytes: 4 MiB.
pub const TEXT_MAX: usize = 4 << 20;
/// The newest `.version` that is known.
const NEWEST: (u32, u32) = (9, 0);

pub(crate) struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The token that is next.
    token: Token<'a>,
    line: u32,
    /// Where it starts.
    start: usize,
}

type Parsed<T> = Result<T, LoadError>;

impl<'a> Module<'a> {
    /// Parses a module. Names are not resolved, and instructions not looked at, before [`crate::Program::link`].
    pub fn parse(text: &'a str) -> Parsed<Self> {
        if text.len() > TEXT_MAX {
            let what = format!("a text of {} bytes; at most {TEXT_MAX} are taken", text.len());
            return Err(LoadError::new(1, "", Reason::TooLarge(what)));
        }
        let mut parser = Parser { lexer: Lexer::new(text), token: Token::End, line: 1, start: 0 };
        let version = parser.version()?;
        parser.next()?;
        let mut module = Module { version, target: "", functions: Vec::new(), variables: Vec::new() };
        while parser.token != Token::End {
            parser.declaration(&mut module)?;
        }
        if module.target.is_empty() {
            return Err(parser.syntax("there is no .target"));
        }
        Ok(module)
    }
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Parsed<Token<'a>> {
        let (token, line, start) = self.lexer.next()?;
        (self.line, self.start) = (line, start);
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn syntax(&self, what: impl Into<String>) -> LoadError {
        LoadError::new(self.line, "", Reason::Syntax(what.into()))
    }

    fn expected(&self, what: &str) -> LoadError {
        let found = match self.token {
            Token::Word(word) | Token::Dot(word) => format!("{word:?}"),
            Token::Punct(punct) => format!("{:?}", char::from(punct)),
            Token::End => "the end".to_string(),
            _ => "a number or a string".to_string(),
        };
        self.syntax(format!("{what} is expected, not {found}"))
    }

    fn unsupported(&self, what: impl Into<String>) -> LoadError {
        LoadError::new(self.line, "", Reason::Unsupported(what.into()))
    }

    /// Takes this punctuation if it is next.
    fn take(&mut self, punct: u8) -> Parsed<bool> {
        let found = self.token == Token::Punct(punct);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    fn expect(&mut self, punct: u8) -> Parsed<()> {
        if self.take(punct)? { Ok(()) } else { Err(self.expected(&format!("{:?}", char::from(punct)))) }
    }

    fn word(&mut self, what: &str) -> Parsed<&'a str> {
        match self.token {
            Token::Word(word) => {
                self.next()?;
                Ok(word)
            }
            _ => Err(self.expected(what)),
        }
    }

    fn int(&mut self) -> Parsed<u64> {
        match self.token {
            Token::Int(value) => {
                self.next()?;
                Ok(value)
            }
            _ => Err(self.expected("an integer")),
        }
    }

    /// Takes this directive or modifier if it is next.
    fn take_dot(&mut self, word: &str) -> Parsed<bool> {
        let found = self.token == Token::Dot(word);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    fn skip_line(&mut self) -> Parsed<()> {
        self.lexer.skip_line();
        self.next().map(|_| ())
    }

    /// `.version`, which comes first.
    fn version(&mut self) -> Parsed<(u32, u32)> {
        if self.lexer.raw_word()? != ".version" {
            return Err(self.syntax("this is no PTX: it does not begin with .version"));
        }
        let word = self.lexer.raw_word()?;
        let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
        let mut parts = word.split('.');
        let (Some(major), Some(minor), None) = (number(parts.next()), number(parts.next()), parts.next()) else {
            return Err(self.syntax(format!("a .version {word:?}")));
        };
        if (major, minor) > NEWEST {
            let what = format!("PTX {major}.{minor}; the newest that is known is {}.{}", NEWEST.0, NEWEST.1);
            return Err(self.unsupported(what));
        }
        Ok((major, minor))
    }

    fn declaration(&mut self, module: &mut Module<'a>) -> Parsed<()> {
        let mut linkage = Linkage::Internal;
        loop {
            let Token::Dot(word) = self.token else { return Err(self.expected("a directive")) };
            match word {
                ".extern" => linkage = Linkage::Extern,
                ".visible" => linkage = Linkage::Visible,
                ".weak" | ".common" => linkage = Linkage::Weak,
                ".target" => {
                    // Its options follow on the line: debug, texmode_independent.
                    self.next()?;
                    module.target = self.word("a target")?;
                    while self.take(b',')? {
                        self.word("an option of the target")?;
                    }
                    return Ok(());
                }
                ".address_size" => {
                    self.next()?;
                    if self.token != Token::Int(64) {
                        return Err(self.unsupported("an .address_size other than 64"));
                    }
                    self.next()?;
                    return Ok(());
                }
                ".file" => return self.skip_line(),
                ".section" => return self.skip_section(),
                ".pragma" => return self.skip_pragma(),
                ".entry" | ".func" => {
                    self.next()?;
                    module.functions.push(self.function(word == ".entry", linkage)?);
                    return Ok(());
                }
                _ if Space::parse(word).is_some() => return self.variables(linkage, &mut module.variables),
                _ => return Err(self.unsupported(format!("the directive {word}"))),
            }
            self.next()?;
        }
    }

    /// Debug information: `.section NAME { .. }`
    fn skip_section(&mut self) -> Parsed<()> {
        self.next()?;
        while self.token != Token::Punct(b'{') {
            if matches!(self.next()?, Token::End) {
                return Err(self.expected("'{'"));
            }
        }
        while self.next()? != Token::Punct(b'}') {
            if self.token == Token::End {
                return Err(self.expected("'}'"));
            }
        }
        Ok(())
    }

    fn skip_pragma(&mut self) -> Parsed<()> {
        while self.next()? != Token::Punct(b';') {
            if self.token == Token::End {
                return Err(self.expected("';'"));
            }
        }
        Ok(())
    }

    fn function(&mut self, entry: bool, linkage: Linkage) -> Parsed<Function<'a>> {
        let returns = if entry { Vec::new() } else { self.params(b'(')? };
        let line = self.line;
        let name = self.word("a name")?;
        let params = self.params(b'(')?;
        // What the kernel is tuned for; only .reqntid would bind, and the launch says the shape.
        while let Token::Dot(word) = self.token {
            match word {
                ".maxntid" | ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".noreturn" | ".reqntid" => {
                    self.next()?;
                    while matches!(self.token, Token::Int(_) | Token::Punct(b',')) {
                        self.next()?;
                    }
                }
                ".pragma" => self.skip_pragma()?,
                _ => return Err(self.unsupported(format!("the directive {word} of a function"))),
            }
        }
        let body = if self.token == Token::Punct(b'{') { Some(self.body()?) } else { None };
        if body.is_none() {
            self.expect(b';')?;
        }
        Ok(Function { name, entry, linkage, signature: Signature { returns, params }, body, line })
    }

    /// A list of parameters in brackets, if there is one.
    fn params(&mut self, open: u8) -> Parsed<Vec<Param<'a>>> {
        let mut params = Vec::new();
        if !self.take(open)? || self.take(b')')? {
            return Ok(params);
        }
        loop {
            params.push(self.param()?);
            if !self.take(b',')? {
                self.expect(b')')?;
                return Ok(params);
            }
        }
    }

    fn param(&mut self) -> Parsed<Param<'a>> {
        if self.token == Token::Dot(".reg") {
            return Err(self.unsupported("parameters in registers"));
        }
        if !self.take_dot(".param")? {
            return Err(self.expected("\".param\""));
        }
        let (mut align, mut ty) = (None, None);
        while let Token::Dot(word) = self.token {
            match word {
                ".align" => {
                    self.next()?;
                    align = Some(self.alignment()?);
                    continue;
                }
                // What a pointer leads to; its alignment is not the parameter's.
                ".ptr" => {
                    self.next()?;
                    while let Token::Dot(attribute) = self.token {
                        self.next()?;
                        if attribute == ".align" {
                            self.alignment()?;
                        }
                    }
                    break;
                }
                _ => ty = Some(self.memory_type(word)?),
            }
            self.next()?;
        }
        let ty = ty.ok_or_else(|| self.expected("a type"))?;
        let name = self.word("the name of a parameter")?;
        let elements = if self.take(b'[')? {
            let count = self.int()?;
            self.expect(b']')?;
            Some(count)
        } else {
            None
        };
        let param = Param { name, ty, elements, align: align.unwrap_or(ty.bytes()) };
        if elements.is_some_and(|count| count > 1 << 16) {
            return Err(self.unsupported("a parameter of more than 64 KiB"));
        }
        Ok(param)
    }

    fn alignment(&mut self) -> Parsed<u64> {
        let align = self.int()?;
        if align.is_power_of_two() && align <= 128 {
            Ok(align)
        } else {
            Err(self.syntax(format!(".align {align}: a power of two up to 128 is expected")))
        }
    }

    /// A type that a variable can have.
    fn memory_type(&self, word: &str) -> Parsed<Type> {
        match (word, Type::parse(word)) {
            (_, Some(Type::PRED)) => Err(self.syntax("a predicate in memory")),
            (_, Some(ty)) => Ok(ty),
            // Bits to whoever does not calculate with them.
            (".f16" | ".bf16", _) => Ok(Type { class: crate::types::Class::Bits, bits: 16 }),
            (".f16x2" | ".bf16x2", _) => Ok(Type::B32),
            (".texref" | ".surfref" | ".samplerref", _) => Err(self.unsupported("textures")),
            _ => Err(self.unsupported(format!("the type {word}"))),
        }
    }
}
