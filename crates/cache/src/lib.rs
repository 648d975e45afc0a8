//! Who owns which KV block and which recurrent-state slot.
