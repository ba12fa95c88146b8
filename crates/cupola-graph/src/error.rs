//! What can be wrong with a program or a step.

/// A program that does not fit together, or a step that does not fit its program.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// Two widths that must agree do not.
    #[error("{op}: {what} is {found} wide, expected {expected}")]
    Width {
        /// The op, with the name of its output.
        op: String,
        /// The operand.
        what: String,
        /// Width that the op needs.
        expected: usize,
        /// Width that came.
        found: usize,
    },
    /// An attribute outside its range, or attributes that contradict each other.
    #[error("{op}: {message}")]
    Attribute {
        /// The op, with the name of its output.
        op: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// Operands of one op differ in which rows they have.
    #[error("{op}: {what} has {found:?} rows, expected {expected:?}")]
    Rows {
        /// The op, with the name of its output.
        op: String,
        /// The operand.
        what: String,
        /// Rows that the op needs.
        expected: crate::Rows,
        /// Rows that came.
        found: crate::Rows,
    },
    /// A step whose parts do not fit together.
    #[error("step: {0}")]
    Step(String),
}
