"""Spikes: tokens whose probability jumps from one draw of an order of arrival to the next, and what makes them."""
