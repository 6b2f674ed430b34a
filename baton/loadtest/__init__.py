"""The load test: drives any OpenAI-compatible address and reports what its users would have felt.

arrivals, traces and workload say what is sent and when; runner sends it through a driver; counting and measure turn the
answers into figures; report_* show them; compare sets two results side by side; limits says what the harness itself can drive.
"""
