//! Several modules to one program: names, addresses of variables, first values.

use std::collections::HashMap;

use crate::{
    decode,
    error::{LoadError, Reason},
    layout,
    module::{Function, Initial, Linkage, Module, Param, Signature, StatementKind, Variable},
    program::Program,
    types::Space,
};

/// Most bytes of variables in all.
const IMAGE_MAX: u64 = 64 << 20;
/// Most bytes of static shared memory, of all kernels together.
const SHARED_MAX: u64 = 1 << 20;
/// What dynamic shared memory begins at a multiple of.
const DYNAMIC_ALIGN: u64 = 128;
/// Most values of a function whose sizes are told where another number of them is expected.
const LISTED_MAX: usize = 256;
/// Most mistakes that are told.
const ERRORS_MAX: usize = 64;

/// What a name of a module stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// A function, by index.
    Function(u32),
    /// A function that nobody defines: only [`check`] lets it pass.
    Missing,
    /// An address in the global or constant space.
    Variable(u64),
    /// An address in the shared space.
    Shared(u64),
}

/// The symbols of all modules.
pub(crate) struct Linked<'a> {
    /// By module and name.
    symbols: Vec<HashMap<&'a str, Symbol>>,
    /// Of each name that is a function in a module, how it is called.
    signatures: Vec<HashMap<&'a str, &'a Signature<'a>>>,
    /// Variables inside of functions: by module, function, statement.
    inner: HashMap<(usize, usize, usize), Symbol>,
    /// How many bytes lie in each space so far.
    global: u64,
    constant: u64,
    shared: u64,
    /// The module that is looked at.
    current: usize,
    errors: Vec<LoadError>,
}

impl Program {
    /// Links modules, decodes and checks all of their functions.
    ///
    /// # Errors
    /// Every mistake and everything that is not covered, by line; at most 64.
    pub fn link(modules: &[Module<'_>]) -> Result<Self, Vec<LoadError>> {
        link(modules, false)
    }
}

/// Looks for everything that [`Program::link`] would refuse, except names that other modules may define.
pub fn check(module: &Module<'_>) -> Vec<LoadError> {
    link(std::slice::from_ref(module), true).err().unwrap_or_default()
}

fn link(modules: &[Module<'_>], partial: bool) -> Result<Program, Vec<LoadError>> {
    let mut linked = Linked {
        symbols: vec![HashMap::new(); modules.len()],
        signatures: vec![HashMap::new(); modules.len()],
        inner: HashMap::new(),
        global: 0,
        constant: 0,
        shared: 0,
        current: 0,
        errors: Vec::new(),
    };
    linked.place(modules);
    linked.resolve(modules, partial);
    let mut program =
        Program { constant: linked.constant_base() as usize, shared: linked.shared as usize, ..Program::default() };
    if linked.errors.is_empty() {
        linked.initialise(modules, &mut program);
        let mut errors = std::mem::take(&mut linked.errors);
        for (module, of) in modules.iter().enumerate() {
            for (index, function) in of.functions.iter().enumerate() {
                if function.body.is_some() && errors.len() < ERRORS_MAX {
                    let before = errors.len();
                    decode::function(&linked, (module, index), function, &mut program, &mut errors);
                    errors[before..].iter_mut().for_each(|error| error.module = module);
                }
            }
        }
        linked.errors = errors;
    }
    if linked.errors.is_empty() {
        return Ok(program);
    }
    linked.errors.truncate(ERRORS_MAX);
    Err(linked.errors)
}

/// Constants begin where global variables end, when all are placed; until then they are counted from here.
const CONSTANT_MARK: u64 = 1 << 48;

impl<'a> Linked<'a> {
    fn constant_base(&self) -> u64 {
        self.global.next_multiple_of(128)
    }

    fn fail(&mut self, line: u32, text: &str, reason: Reason) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(LoadError { module: self.current, ..LoadError::new(line, text, reason) });
        }
    }

    /// The symbol of a name in a module.
    pub(crate) fn symbol(&self, module: usize, name: &str) -> Option<Symbol> {
        self.symbols[module].get(name).map(|symbol| self.settled(*symbol))
    }

    /// How the module calls the function of that name.
    pub(crate) fn signature(&self, module: usize, name: &str) -> Option<&'a Signature<'a>> {
        self.signatures[module].get(name).copied()
    }

    /// The symbol of a variable that a statement of a function declares.
    pub(crate) fn inner(&self, function: (usize, usize), statement: usize) -> Option<Symbol> {
        self.inner.get(&(function.0, function.1, statement)).map(|symbol| self.settled(*symbol))
    }

    fn settled(&self, symbol: Symbol) -> Symbol {
        match symbol {
            Symbol::Variable(at) if at & CONSTANT_MARK != 0 => {
                Symbol::Variable((at & !CONSTANT_MARK) + self.constant_base())
            }
            other => other,
        }
    }

    /// Gives a variable its address.
    fn place_variable(&mut self, variable: &Variable<'_>) -> Symbol {
        let (next, most) = match variable.space {
            Space::Shared => (&mut self.shared, SHARED_MAX),
            Space::Const => (&mut self.constant, IMAGE_MAX),
            _ => (&mut self.global, IMAGE_MAX),
        };
        let at = next.next_multiple_of(variable.align);
        let end = at + variable.bytes;
        if end > most {
            let what = format!("variables of more than {most} bytes in the {} space", variable.space);
            self.fail(variable.line, variable.name, Reason::TooLarge(what));
            return Symbol::Variable(0);
        }
        *next = end;
        if variable.space == Space::Shared && !variable.init.is_empty() {
            let what = "a variable in shared memory with a first value".to_string();
            self.fail(variable.line, variable.name, Reason::Syntax(what));
        }
        match variable.space {
            Space::Shared => Symbol::Shared(at),
            Space::Const => Symbol::Variable((layout::VARIABLES + at) | CONSTANT_MARK),
            _ => Symbol::Variable(layout::VARIABLES + at),
        }
    }

    /// Numbers functions and places variables.
    fn place(&mut self, modules: &'a [Module<'a>]) {
        let mut functions = 0;
        for (index, module) in modules.iter().enumerate() {
            self.current = index;
            for variable in module.variables.iter().filter(|variable| variable.linkage != Linkage::Extern) {
                if !matches!(variable.space, Space::Global | Space::Const | Space::Shared) {
                    let what = format!("a variable in the {} space outside of functions", variable.space);
                    self.fail(variable.line, variable.name, Reason::Syntax(what));
                    continue;
                }
                let symbol = self.place_variable(variable);
                if self.symbols[index].insert(variable.name, symbol).is_some() {
                    self.fail(variable.line, variable.name, Reason::Doubled(variable.name.into()));
                }
            }
            for (number, function) in module.functions.iter().enumerate() {
                let Some(body) = &function.body else { continue };
                if self.symbols[index].insert(function.name, Symbol::Function(functions)).is_some() {
                    self.fail(function.line, function.name, Reason::Doubled(function.name.into()));
                }
                functions += 1;
                for (at, statement) in body.iter().enumerate() {
                    if let StatementKind::Variable(variable) = &statement.kind
                        && matches!(variable.space, Space::Shared | Space::Global | Space::Const)
                    {
                        let symbol = self.place_variable(variable);
                        self.inner.insert((index, number, at), symbol);
                    }
                }
            }
        }
        self.shared = self.shared.next_multiple_of(DYNAMIC_ALIGN);
    }

    /// Finds what other modules define.
    fn resolve(&mut self, modules: &'a [Module<'a>], partial: bool) {
        let mut exports: HashMap<&str, (Symbol, Linkage, Option<&Signature<'_>>)> = HashMap::new();
        for (index, module) in modules.iter().enumerate() {
            self.current = index;
            let functions = module.functions.iter().filter(|function| function.body.is_some());
            let functions =
                functions.map(|one| (one.name, one.linkage, one.line, (!one.entry).then_some(&one.signature)));
            let variables = module.variables.iter().map(|one| (one.name, one.linkage, one.line, None));
            for (name, linkage, line, signature) in functions.chain(variables) {
                if !matches!(linkage, Linkage::Visible | Linkage::Weak) {
                    continue;
                }
                let Some(symbol) = self.symbols[index].get(name).copied() else { continue };
                match exports.get(name) {
                    Some((_, Linkage::Visible, _)) if linkage == Linkage::Visible => {
                        self.fail(line, name, Reason::Doubled(name.into()));
                    }
                    Some((_, before, _)) if *before == Linkage::Visible || linkage == Linkage::Weak => {}
                    _ => {
                        exports.insert(name, (symbol, linkage, signature));
                    }
                }
            }
        }
        for (index, module) in modules.iter().enumerate() {
            self.current = index;
            for function in &module.functions {
                self.resolve_function(index, function, &exports, partial);
            }
            for variable in &module.variables {
                let dynamic = variable.space == Space::Shared && variable.linkage == Linkage::Extern;
                let symbol = match (variable.linkage, exports.get(variable.name)) {
                    _ if dynamic => Symbol::Shared(self.shared),
                    (Linkage::Weak | Linkage::Extern, Some((symbol, _, _))) => *symbol,
                    (Linkage::Extern, None) if partial => Symbol::Variable(layout::VARIABLES),
                    (Linkage::Extern, None) => {
                        self.fail(variable.line, variable.name, Reason::Missing(variable.name.into()));
                        continue;
                    }
                    _ => continue,
                };
                self.symbols[index].insert(variable.name, symbol);
            }
        }
    }

    fn resolve_function(
        &mut self,
        module: usize,
        function: &'a Function<'a>,
        exports: &HashMap<&str, (Symbol, Linkage, Option<&'a Signature<'a>>)>,
        partial: bool,
    ) {
        if self.errors.len() >= ERRORS_MAX {
            return;
        }
        let name = function.name;
        if !function.entry {
            let known = self.signatures[module].insert(name, &function.signature);
            if let Some(difference) = known.and_then(|known| difference(known, &function.signature)) {
                self.fail(function.line, name, Reason::Prototype(name.into(), difference));
            }
        }
        if function.body.is_some() && function.linkage != Linkage::Weak {
            return;
        }
        match exports.get(name) {
            Some((symbol, _, signature)) => {
                let difference = signature.and_then(|signature| difference(signature, &function.signature));
                if let Some(difference) = difference {
                    self.fail(function.line, name, Reason::Prototype(name.into(), difference));
                }
                self.symbols[module].insert(name, *symbol);
            }
            None if self.symbols[module].contains_key(name) => {}
            None if partial => {
                self.symbols[module].insert(name, Symbol::Missing);
            }
            None => self.fail(function.line, name, Reason::Missing(name.into())),
        }
    }

    /// Writes the first values of all variables.
    fn initialise(&mut self, modules: &'a [Module<'a>], program: &mut Program) {
        program.image = vec![0; (self.constant_base() + self.constant) as usize];
        for (index, module) in modules.iter().enumerate() {
            self.current = index;
            for variable in module.variables.iter().filter(|variable| variable.linkage != Linkage::Extern) {
                let symbol = self.symbol(index, variable.name);
                self.initialise_variable(index, variable, symbol, &mut program.image);
            }
            for (number, function) in module.functions.iter().enumerate() {
                for (at, statement) in function.body.iter().flatten().enumerate() {
                    if let StatementKind::Variable(variable) = &statement.kind {
                        self.initialise_variable(index, variable, self.inner((index, number), at), &mut program.image);
                    }
                }
            }
        }
    }

    fn initialise_variable(
        &mut self,
        module: usize,
        variable: &Variable<'a>,
        symbol: Option<Symbol>,
        image: &mut [u8],
    ) {
        let Some(Symbol::Variable(address)) = symbol else { return };
        let (start, size) = ((address - layout::VARIABLES) as usize, variable.ty.bytes() as usize);
        for (index, initial) in &variable.init {
            let wrong = |what: &str| Reason::Operand(format!("a first value of {}: {what}", variable.ty));
            let value = match (*initial, variable.ty.is_float(), size) {
                (Initial::Int(value), false, _) => Ok(value),
                (Initial::Single(bits), true, 4) => Ok(bits.into()),
                (Initial::Double(bits), true, 4) => Ok((f64::from_bits(bits) as f32).to_bits().into()),
                (Initial::Double(bits), true, 8) => Ok(bits),
                (Initial::Name(name, offset), false, 8) => match self.symbol(module, name) {
                    Some(Symbol::Function(index)) => Ok(layout::function(index)),
                    Some(Symbol::Variable(at) | Symbol::Shared(at)) => Ok(at.wrapping_add(offset)),
                    Some(Symbol::Missing) => Ok(0),
                    None => Err(Reason::Undeclared(name.into())),
                },
                (Initial::Name(..), _, _) => Err(wrong("an address has 64 bits")),
                _ => Err(wrong("a number of another kind")),
            };
            match value {
                Ok(value) => {
                    let at = start + *index as usize * size;
                    image[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
                }
                Err(reason) => return self.fail(variable.line, variable.name, reason),
            }
        }
    }
}

/// What differs between two ways to call a function, in bytes.
pub(crate) fn difference(own: &Signature<'_>, other: &Signature<'_>) -> Option<String> {
    for (what, own, other) in [("takes", &own.params, &other.params), ("returns", &own.returns, &other.returns)] {
        if own.len() != other.len() && own.len().max(other.len()) > LISTED_MAX {
            return Some(format!("it {what} {} values, not {}", own.len(), other.len()));
        }
        let [own, other] = [own, other].map(|params| params.iter().map(Param::bytes).collect::<Vec<_>>());
        if own != other {
            return Some(format!("it {what} values of {own:?} bytes, not {other:?}"));
        }
    }
    None
}
