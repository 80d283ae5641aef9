//! Replacing old entries of a view by a summary.
