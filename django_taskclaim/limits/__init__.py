"""What keeps claims of a model back beside the switch: limits that its handler names, or that its Switch row stores.

``model_limits`` says what holds and ``rate_and_hours`` what it means, ``grant`` counts it for one claim;
``per_key`` and ``serial`` choose rows by a column.
"""
