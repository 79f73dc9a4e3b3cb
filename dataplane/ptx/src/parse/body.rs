//! Statements of a function's body.

use super::{Parsed, Parser};
use crate::{
    lex::Token,
    module::{Instruction, Linkage, Operand, Signature, Statement, StatementKind},
    types::{Space, Type},
};

/// Deepest nesting of blocks.
const DEPTH_MAX: u32 = 64;
/// Most operands of an instruction, and parameters of a call.
const OPERANDS_MAX: usize = 256;

impl<'a> Parser<'a> {
    /// A body, from its brace to the one that closes it; these two are not among the statements.
    pub(super) fn body(&mut self) -> Parsed<Vec<Statement<'a>>> {
        self.expect(b'{')?;
        let (mut statements, mut depth) = (Vec::new(), 0);
        loop {
            let line = self.line;
            let mut push = |kind| statements.push(Statement { kind, line });
            match self.token {
                Token::Punct(b'{') => {
                    depth += 1;
                    if depth > DEPTH_MAX {
                        return Err(self.syntax(format!("blocks that are nested more than {DEPTH_MAX} deep")));
                    }
                    self.next()?;
                    push(StatementKind::Open);
                }
                Token::Punct(b'}') => {
                    self.next()?;
                    if depth == 0 {
                        return Ok(statements);
                    }
                    depth -= 1;
                    push(StatementKind::Close);
                }
                Token::Punct(b';') => {
                    self.next()?;
                }
                Token::Punct(b'@') => push(StatementKind::Instruction(self.guarded()?)),
                Token::Dot(".reg") => self.registers(&mut statements)?,
                Token::Dot(".loc") => self.skip_line()?,
                Token::Dot(".pragma") => self.skip_pragma()?,
                Token::Dot(word) if Space::parse(word).is_some() => {
                    let mut variables = Vec::new();
                    self.variables(Linkage::Internal, &mut variables)?;
                    let statement = |variable| Statement { kind: StatementKind::Variable(variable), line };
                    statements.extend(variables.into_iter().map(statement));
                }
                Token::Word(word) => {
                    let start = self.start;
                    self.next()?;
                    if self.take(b':')? {
                        self.labelled(word, line, &mut statements)?;
                    } else {
                        push(StatementKind::Instruction(self.instruction(None, word, start)?));
                    }
                }
                _ => return Err(self.expected("a statement")),
            }
        }
    }

    /// `.reg .b32 %r<5>;` or `.reg .b32 a, b;`
    fn registers(&mut self, statements: &mut Vec<Statement<'a>>) -> Parsed<()> {
        self.next()?;
        let Token::Dot(word) = self.token else { return Err(self.expected("a type")) };
        let ty = match (word, Type::parse(word)) {
            (".v2" | ".v4", _) => return Err(self.unsupported("registers of vectors")),
            (_, Some(Type::PRED)) => Type::PRED,
            _ => self.memory_type(word)?,
        };
        self.next()?;
        loop {
            let line = self.line;
            let name = self.word("the name of a register")?;
            let count = if self.take(b'<')? {
                let count = u32::try_from(self.int()?).unwrap_or(u32::MAX);
                self.expect(b'>')?;
                Some(count)
            } else {
                None
            };
            statements.push(Statement { kind: StatementKind::Registers { name, ty, count }, line });
            if !self.take(b',')? {
                return self.expect(b';');
            }
        }
    }

    /// What follows `name:`
    fn labelled(&mut self, name: &'a str, line: u32, statements: &mut Vec<Statement<'a>>) -> Parsed<()> {
        let kind = if self.take_dot(".callprototype")? {
            let returns = self.params(b'(')?;
            if self.word("\"_\"")? != "_" {
                return Err(self.syntax("a prototype has no name but \"_\""));
            }
            let params = self.params(b'(')?;
            self.take_dot(".noreturn")?;
            self.expect(b';')?;
            StatementKind::Prototype(name, Signature { returns, params })
        } else if self.take_dot(".branchtargets")? {
            let mut targets = Vec::new();
            loop {
                targets.push(self.word("a label")?);
                if !self.take(b',')? {
                    break;
                }
            }
            self.expect(b';')?;
            StatementKind::Targets(name, targets)
        } else if self.token == Token::Dot(".calltargets") {
            return Err(self.unsupported(".calltargets; a .callprototype is covered"));
        } else {
            StatementKind::Label(name)
        };
        statements.push(Statement { kind, line });
        Ok(())
    }

    fn guarded(&mut self) -> Parsed<Instruction<'a>> {
        let start = self.start;
        self.expect(b'@')?;
        let negated = self.take(b'!')?;
        let guard = self.word("a predicate")?;
        let opcode = self.word("an opcode")?;
        self.instruction(Some((negated, guard)), opcode, start)
    }

    fn instruction(
        &mut self,
        guard: Option<(bool, &'a str)>,
        opcode: &'a str,
        start: usize,
    ) -> Parsed<Instruction<'a>> {
        let mut modifiers = Vec::new();
        while let Token::Dot(word) = self.token {
            modifiers.push(word);
            self.next()?;
        }
        let mut operands = Vec::new();
        while self.token != Token::Punct(b';') {
            operands.push(self.operand()?);
            if operands.len() > OPERANDS_MAX {
                return Err(self.syntax(format!("more than {OPERANDS_MAX} operands")));
            }
            if !self.take(b',')? {
                break;
            }
        }
        if self.token != Token::Punct(b';') {
            return Err(self.expected("',' or ';'"));
        }
        let text = &self.lexer.text()[start..self.lexer.position()];
        self.next()?;
        Ok(Instruction { guard, opcode, modifiers, operands, text })
    }

    fn operand(&mut self) -> Parsed<Operand<'a>> {
        Ok(match self.token {
            Token::Punct(b'{') => {
                self.next()?;
                Operand::Vector(self.operands(b'}')?)
            }
            Token::Punct(b'(') => {
                self.next()?;
                Operand::List(self.operands(b')')?)
            }
            Token::Punct(b'[') => {
                self.next()?;
                let base = match self.token {
                    Token::Word(word) => {
                        self.next()?;
                        Some(word)
                    }
                    _ => None,
                };
                let offset = if base.is_some() { self.offset()? } else { self.int()? };
                if self.take(b',')? {
                    // Coordinates, which only instructions that are not covered have.
                    let vector = self.take(b'{')?;
                    self.operands(if vector { b'}' } else { b']' })?;
                    if vector {
                        self.expect(b']')?;
                    }
                    return Ok(Operand::Coordinates);
                }
                self.expect(b']')?;
                Operand::Address(base, offset)
            }
            _ => self.scalar()?,
        })
    }

    /// Scalars up to a closing bracket.
    fn operands(&mut self, close: u8) -> Parsed<Vec<Operand<'a>>> {
        let mut operands = Vec::new();
        if self.take(close)? {
            return Ok(operands);
        }
        loop {
            operands.push(self.scalar()?);
            if operands.len() > OPERANDS_MAX {
                return Err(self.syntax(format!("more than {OPERANDS_MAX} operands")));
            }
            if !self.take(b',')? {
                self.expect(close)?;
                return Ok(operands);
            }
        }
    }

    fn scalar(&mut self) -> Parsed<Operand<'a>> {
        match self.token {
            Token::Word(name) => {
                self.next()?;
                if let Token::Dot(member) = self.token {
                    self.next()?;
                    return Ok(Operand::Member(name, member));
                }
                if self.take(b'|')? {
                    return Ok(Operand::Pair(name, self.word("a register")?));
                }
                match self.offset()? {
                    0 => Ok(Operand::Name(name)),
                    offset => Ok(Operand::Sum(name, offset)),
                }
            }
            Token::Punct(b'!') => {
                self.next()?;
                Ok(Operand::Not(self.word("a predicate")?))
            }
            Token::Punct(b'-') => {
                self.next()?;
                match self.next()? {
                    Token::Int(value) => Ok(Operand::Int(value.wrapping_neg())),
                    Token::Single(bits) => Ok(Operand::Single(bits ^ 1 << 31)),
                    Token::Double(bits) => Ok(Operand::Double(bits ^ 1 << 63)),
                    _ => Err(self.syntax("a number is expected after '-'")),
                }
            }
            Token::Int(value) => self.next().map(|_| Operand::Int(value)),
            Token::Single(bits) => self.next().map(|_| Operand::Single(bits)),
            Token::Double(bits) => self.next().map(|_| Operand::Double(bits)),
            _ => Err(self.expected("an operand")),
        }
    }
}
