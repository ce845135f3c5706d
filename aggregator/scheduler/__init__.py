"""Pure decisions: which inputs go in which batch, to which replica, when. Time comes in as an argument, in seconds."""
