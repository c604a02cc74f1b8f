"""The tests of headwater, in the folders of the source they test."""
