//! Functions as PTX: what joins them to the dispatcher, and what is wrong with them.

use std::fmt::Write as _;

use berth_ptx::{Function as PtxFunction, Linkage, Module as Ptx, Program, check as check_module};

use crate::control::{Code, Function, Functions};

/// The dispatcher and the built-in functions, as compiled from `kernels/*.cu`.
pub(crate) const DISPATCH: &str = include_str!("../kernels/dispatch.ptx");
pub(crate) const HANDLERS: &str = include_str!("../kernels/handlers.ptx");

/// Texts that stand before those of [`Functions::modules`]: the glue, the dispatcher, the handlers.
pub(crate) const OWN: usize = 3;

/// `DEVICE_CALL`: bytes of what it takes, and of what it returns.
const TAKES: [u64; 5] = [8, 8, 4, 4, 8];
const RETURNS: [u64; 1] = [4];
const PARAMS: &str =
    "(.param .b64 in, .param .b64 out, .param .b32 arg_len, .param .b32 max_result_len, .param .b64 result_len";

/// What keeps a GPU from running functions, as [`check`] finds it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct Problem {
    /// Which, of [`Functions::modules`]; `None` if it is in none of them alone.
    pub module: Option<usize>,
    /// Which, of [`Functions::all`], if it is about one.
    pub function: Option<usize>,
    /// The line of its text, from 1.
    pub line: Option<u32>,
    /// What is wrong.
    pub message: String,
}

/// Looks for all that would keep a GPU from running these functions: mistakes, instructions that are not covered,
/// symbols that are missing or doubled, prototypes other than `DEVICE_CALL`'s.
pub fn check(functions: &Functions) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut parsed = Vec::new();
    for (index, module) in functions.modules.iter().enumerate() {
        let problem = |line, message| Problem { module: Some(index), function: None, line: Some(line), message };
        match Ptx::parse(&module.text) {
            Ok(module) => {
                problems.extend(check_module(&module).iter().map(|e| problem(e.line, told(e))));
                parsed.push(Some(module));
            }
            Err(e) => {
                problems.push(problem(e.line, told(&e)));
                parsed.push(None);
            }
        }
    }
    for (index, function) in functions.all.iter().enumerate() {
        let Code::Symbol { module, symbol } = &function.code else { continue };
        let Some(Some(parsed)) = parsed.get(*module) else { continue };
        let found = parsed.functions.iter().find(|one| one.name == symbol && one.body.is_some());
        let wrong = if function.graph { wrong_graph(symbol, found) } else { wrong(symbol, found) };
        if let Some((line, message)) = wrong {
            problems.push(Problem { module: Some(*module), function: Some(index), line, message });
        }
    }
    if let Some(function) = mixed(functions) {
        problems.push(Problem { module: None, function: Some(function), line: None, message: MIXED.into() });
    }
    if problems.is_empty() {
        let glue = glue(functions, &[]);
        let all = if are_graphs(functions) { own_texts(functions) } else { texts(functions, &glue) };
        let own = all.len() - functions.modules.len();
        // All of them were parsed before, or are our own.
        let modules: Vec<_> = all.iter().filter_map(|text| Ptx::parse(text).ok()).collect();
        let errors = Program::link(&modules).err().unwrap_or_default();
        problems.extend(errors.iter().map(|e| Problem {
            module: e.module.checked_sub(own),
            function: None,
            line: Some(e.line),
            message: told(e),
        }));
    }
    problems
}

fn told(error: &berth_ptx::LoadError) -> String {
    if error.text.is_empty() { error.reason.to_string() } else { format!("{}: {}", error.reason, error.text) }
}

/// What is said of functions of both modes on one GPU.
pub(crate) const MIXED: &str = "mode = \"graph\" is not beside other functions on one GPU; give them another [[gpu]]";

/// Whether the functions are graphs, which the worker's own thread launches.
pub(crate) fn are_graphs(functions: &Functions) -> bool {
    functions.all.iter().any(|function| function.graph)
}

/// A function that is called beside others that are graphs.
pub(crate) fn mixed(functions: &Functions) -> Option<usize> {
    functions.all.iter().position(|function| !function.graph).filter(|_| are_graphs(functions))
}

/// Why this is no kernel that can be launched for a request.
fn wrong_graph(symbol: &str, found: Option<&PtxFunction<'_>>) -> Option<(Option<u32>, String)> {
    let Some(found) = found.filter(|found| found.entry) else {
        return Some((
            found.map(|found| found.line),
            format!("{symbol:?} is no kernel; mode = \"graph\" is for extern \"C\" __global__"),
        ));
    };
    let takes: Vec<_> = found.signature.params.iter().map(berth_ptx::Param::bytes).collect();
    let message = || format!("{symbol:?} takes {takes:?} bytes; a graph's kernel takes a GraphIOContext*, [8]");
    (takes != [8]).then(|| (Some(found.line), message()))
}

/// Why this is no device function that a dispatcher can call.
fn wrong(symbol: &str, found: Option<&PtxFunction<'_>>) -> Option<(Option<u32>, String)> {
    let Some(found) = found else {
        return Some((None, format!("no function {symbol:?} is defined; CUDA C++ needs extern \"C\" __device__")));
    };
    let line = Some(found.line);
    if found.entry {
        return Some((line, format!("{symbol:?} is a kernel; a handler is a __device__ function")));
    }
    if !matches!(found.linkage, Linkage::Visible | Linkage::Weak) {
        return Some((line, format!("{symbol:?} is not visible; nvcc needs -rdc=true")));
    }
    let bytes = |params: &[berth_ptx::Param<'_>]| params.iter().map(berth_ptx::Param::bytes).collect::<Vec<_>>();
    let (takes, returns) = (bytes(&found.signature.params), bytes(&found.signature.returns));
    if (&takes[..], &returns[..]) == (&TAKES[..], &RETURNS[..]) {
        return None;
    }
    let message = format!(
        "{symbol:?} takes {takes:?} bytes and returns {returns:?}; a handler is int(const void *in, void *out, uint32_t \
         arg_len, uint32_t max_result_len, uint32_t *result_len), {TAKES:?} and {RETURNS:?}"
    );
    Some((line, message))
}

/// The texts of functions that need no dispatcher.
pub(crate) fn own_texts(functions: &Functions) -> Vec<&str> {
    functions.modules.iter().map(|module| &*module.text).collect()
}

/// All texts that are linked, in order.
pub(crate) fn texts<'a>(functions: &'a Functions, glue: &'a str) -> Vec<&'a str> {
    let own = [glue, DISPATCH, HANDLERS];
    own.into_iter().chain(functions.modules.iter().map(|module| &*module.text)).collect()
}

/// The module that tells the dispatcher what it can call. `tables` has the addresses of the tables of those functions that
/// have one, in order; without them it can be checked and not run.
pub(crate) fn glue(functions: &Functions, tables: &[u64]) -> String {
    let mut text = String::from(".version 6.3\n.target sm_70\n.address_size 64\n");
    let mut tables = tables.iter();
    let (mut names, mut words, mut declared) = (Vec::new(), Vec::new(), Vec::new());
    for (index, Function { id, code, parallel, built_in, checks_length, fixed, unit, graph: _ }) in
        functions.all.iter().enumerate()
    {
        let name = match code {
            Code::Increment => "berth_rpc_increment".to_owned(),
            Code::MockDecode { .. } => format!("berth_mock_decode_{index}"),
            Code::Symbol { symbol, .. } => symbol.clone(),
        };
        if let Code::MockDecode { .. } = code {
            let table = tables.next().copied().unwrap_or(0);
            if !declared.iter().any(|known| known == "berth_mock_decode") {
                let _ = writeln!(
                    text,
                    ".extern .func (.param .b32 status) berth_mock_decode {PARAMS}, .param .b64 table);"
                );
                declared.push("berth_mock_decode".to_owned());
            }
            let _ = writeln!(text, ".visible .func (.param .b32 status) {name} {PARAMS})\n{{");
            let _ = writeln!(text, "{}", MOCK_BODY.replace("TABLE", &table.to_string()));
        } else if !declared.contains(&name) {
            let _ = writeln!(text, ".extern .func (.param .b32 status) {name} {PARAMS});");
            declared.push(name.clone());
        }
        names.push(name);
        let flags = u32::from(*parallel) | u32::from(*built_in) << 1 | u32::from(*checks_length) << 2;
        words.push(format!("{id}, {flags}, {fixed}, {unit}"));
    }
    let count = names.len();
    let lost = u32::from(functions.lost);
    let _ = writeln!(text, ".visible .global .align 4 .u32 berth_count = {count};");
    let _ = writeln!(text, ".visible .global .align 4 .u32 berth_sessions_lost = {lost};");
    // An array has an element at least.
    if count == 0 {
        (names, words) = (vec!["0".into()], vec!["0, 0, 0, 0".into()]);
    }
    let (handlers, functions, room) = (names.join(", "), words.join(", "), count.max(1));
    let _ = writeln!(text, ".visible .global .align 8 .u64 berth_handlers[{room}] = {{{handlers}}};");
    let _ = writeln!(text, ".visible .global .align 4 .u32 berth_functions[{}] = {{{functions}}};", 4 * room);
    text
}

/// Calls `berth_mock_decode` with the function's own table.
const MOCK_BODY: &str = "\
.reg .b64 %rd<5>;
.reg .b32 %r<4>;
ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
ld.param.u32 %r1, [arg_len];
ld.param.u32 %r2, [max_result_len];
ld.param.u64 %rd3, [result_len];
mov.u64 %rd4, TABLE;
{
.param .b64 p0;
st.param.b64 [p0+0], %rd1;
.param .b64 p1;
st.param.b64 [p1+0], %rd2;
.param .b32 p2;
st.param.b32 [p2+0], %r1;
.param .b32 p3;
st.param.b32 [p3+0], %r2;
.param .b64 p4;
st.param.b64 [p4+0], %rd3;
.param .b64 p5;
st.param.b64 [p5+0], %rd4;
.param .b32 returned;
call.uni (returned), berth_mock_decode, (p0, p1, p2, p3, p4, p5);
ld.param.b32 %r3, [returned+0];
}
st.param.b32 [status+0], %r3;
ret;
}";
