//! What work costs (T4). Another table is another profile version.

use wasmtime::{OperatorCost, VariableOperatorCost};

/// A hostcall.
pub(crate) const HOSTCALL: u64 = 100;

/// Bytes that a hostcall moves for one unit more; less than that many are free.
pub(crate) const BYTES_PER_UNIT: u64 = 8;

/// Bulk operations: one unit a byte or an element, beside the operator's own. Those of GC are no part of the profile.
const VARIABLE: VariableOperatorCost = VariableOperatorCost {
    memory_copy_per_byte: 1,
    memory_fill_per_byte: 1,
    memory_init_per_byte: 1,
    memory_grow_per_page: 0,
    table_copy_per_element: 1,
    table_fill_per_element: 1,
    table_init_per_element: 1,
    table_grow_per_element: 1,
    array_copy_per_element: 1,
    array_fill_per_element: 1,
    array_new_data_per_element: 1,
    array_init_data_per_element: 1,
    array_new_elem_per_element: 1,
    array_init_elem_per_element: 1,
    array_new_default_per_element: 1,
    array_new_per_element: 1,
};

/// Units of an operator.
macro_rules! units {
    (Block) => {
        0
    };
    (Loop) => {
        0
    };
    (Else) => {
        0
    };
    (End) => {
        0
    };
    (Nop) => {
        0
    };
    (Drop) => {
        0
    };
    (Return) => {
        0
    };
    (Unreachable) => {
        0
    };
    ($operator:ident) => {
        1
    };
}

macro_rules! table {
    ($(@$proposal:ident $operator:ident $({ $($field:ident: $type:ty),* })? => $visit:ident ($($annotation:tt)*))*) => {
        OperatorCost { $($operator: units!($operator),)* variable: VARIABLE }
    };
}

/// Units of every operator; a function's entry is one more, which is wasmtime's own rule.
pub(crate) fn table() -> OperatorCost {
    wasmparser::for_each_operator!(table)
}
