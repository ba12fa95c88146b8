//! Programs: typed ops over named values, shapes, fusion, memory plan.
