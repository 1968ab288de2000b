"""The replay ladder (`replay: true`): the candidate with more and more of the reference's routes forced."""
